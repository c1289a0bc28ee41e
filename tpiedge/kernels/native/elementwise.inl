// Norm, rotation and activation of some rows, on the calling thread. V as in kernels.inl.

namespace {

using tpiedge::Rows;

// 1.5 * 2^23: in x + ROUND the last bits are x rounded to an integer n; power2 makes 2^n of them.
constexpr float ROUND = 12582912.0f;

// The smaller one; NaN where x is NaN.
template <class V>
inline typename V::Reg at_most(typename V::Reg x, float most) {
    return V::sub(V::zero(), V::max(V::broadcast(-most), V::sub(V::zero(), x)));
}

// e^x within 2 units in the last place for -87 < x < 88, the values at these bounds beyond them; NaN stays NaN.
// Cephes' expf: x = n ln 2 + r, with ln 2 in two parts, and a polynomial in r.
template <class V>
inline typename V::Reg exponential(typename V::Reg x) {
    x = at_most<V>(V::max(V::broadcast(-87.0f), x), 88.0f);
    const typename V::Reg magic = V::fma(x, V::broadcast(1.44269504088896341f), V::broadcast(ROUND));
    const typename V::Reg n = V::sub(magic, V::broadcast(ROUND));
    typename V::Reg r = V::fma(n, V::broadcast(-0.693359375f), x);
    r = V::fma(n, V::broadcast(2.12194440e-4f), r);
    typename V::Reg p = V::broadcast(1.9875691500e-4f);
    p = V::fma(p, r, V::broadcast(1.3981999507e-3f));
    p = V::fma(p, r, V::broadcast(8.3334519073e-3f));
    p = V::fma(p, r, V::broadcast(4.1665795894e-2f));
    p = V::fma(p, r, V::broadcast(1.6666665459e-1f));
    p = V::fma(p, r, V::broadcast(0.5f));
    p = V::add(V::fma(p, V::mul(r, r), r), V::broadcast(1.0f));
    return V::mul(p, V::power2(magic));
}

template <class V>
float sum_of_squares(const float *x, int64_t width) {
    typename V::Reg acc[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    int64_t c = 0;
    for (; c + 4 * V::lanes <= width; c += 4 * V::lanes)
        for (int i = 0; i < 4; i++) {
            const auto in = V::load(x + c + i * V::lanes);
            acc[i] = V::fma(in, in, acc[i]);
        }
    for (; c < width; c += V::lanes) {
        const int64_t left = width - c;
        const auto in = left < V::lanes ? V::load_some(x + c, static_cast<int>(left)) : V::load(x + c);
        acc[0] = V::fma(in, in, acc[0]);
    }
    return V::sum(V::add(V::add(acc[0], acc[1]), V::add(acc[2], acc[3])));
}

template <class V>
void rms_norm(const Rows &rows, const float *weight, float eps) {
    float *y = rows.y;
    for (int64_t t = 0; t < rows.tokens; t++)
        for (int64_t h = 0; h < rows.heads; h++, y += rows.width) {
            const float *x = rows.x + t * rows.token_stride + h * rows.head_stride;
            const float mean = sum_of_squares<V>(x, rows.width) / static_cast<float>(rows.width);
            const auto factor = V::broadcast(1.0f / sqrtf(mean + eps));
            int64_t c = 0;
            for (; c + V::lanes <= rows.width; c += V::lanes)
                V::store(y + c, V::mul(V::load(weight + c), V::mul(V::load(x + c), factor)));
            const int left = static_cast<int>(rows.width - c);
            if (left)
                V::store_some(y + c, V::mul(V::load_some(weight + c, left), V::mul(V::load_some(x + c, left), factor)),
                              left);
        }
}

// One half of a rotated row: y = x * cos + sign * other * sin.
template <class V>
inline void rotate_half(const float *x, const float *other, const float *cos, const float *sin, float sign, float *y,
                        int64_t half) {
    int64_t c = 0;
    for (; c + V::lanes <= half; c += V::lanes) {
        const auto turned = V::mul(V::mul(V::broadcast(sign), V::load(other + c)), V::load(sin + c));
        V::store(y + c, V::add(V::mul(V::load(x + c), V::load(cos + c)), turned));
    }
    for (; c < half; c++) y[c] = x[c] * cos[c] + sign * other[c] * sin[c];
}

template <class V>
void rope(const Rows &rows, const Rotation &rotation, int64_t rotated) {
    const int64_t half = rotated / 2;
    const float *cos = rotation.cos, *sin = rotation.sin;
    float *y = rows.y;
    for (int64_t t = 0; t < rows.tokens; t++, cos += rotated, sin += rotated)
        for (int64_t h = 0; h < rows.heads; h++, y += rows.width) {
            const float *x = rows.x + t * rows.token_stride + h * rows.head_stride;
            rotate_half<V>(x, x + half, cos, sin, -1.0f, y, half);
            rotate_half<V>(x + half, x, cos + half, sin + half, 1.0f, y + half, half);
            memcpy(y + rotated, x + rotated, (rows.width - rotated) * sizeof(float));
            if (!rotation.factor) continue;
            const float factor = rotation.factor[t];
            for (int64_t c = 0; c < rows.width; c++) y[c] *= factor;
        }
}

// What most activations are multiplied by.
template <class V>
struct Gated {
    static typename V::Reg factor(typename V::Reg up) { return up; }
};

// x / (1 + e^-x).
template <class V>
struct Silu : Gated<V> {
    static typename V::Reg of(typename V::Reg x) {
        return V::div(x, V::add(V::broadcast(1.0f), exponential<V>(V::sub(V::zero(), x))));
    }
};

// x / (1 + e^(-2 sqrt(2 / pi) (x + 0.044715 x^3))), which is 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
template <class V>
struct GeluTanh : Gated<V> {
    static typename V::Reg of(typename V::Reg x) {
        const auto inner = V::fma(V::broadcast(0.044715f), V::mul(V::mul(x, x), x), x);
        const auto grown = exponential<V>(V::mul(V::broadcast(-1.5957691216057308f), inner));
        return V::div(x, V::add(V::broadcast(1.0f), grown));
    }
};

// 1 - 2 / (1 + e^(2 x)).
template <class V>
struct Tanh : Gated<V> {
    static typename V::Reg of(typename V::Reg x) {
        const auto grown = V::add(V::broadcast(1.0f), exponential<V>(V::mul(x, V::broadcast(2.0f))));
        return V::sub(V::broadcast(1.0f), V::div(V::broadcast(2.0f), grown));
    }
};

// g / (1 + e^(-1.702 g)) of g = min(x, 7), times 1 + up, which is between -7 and 7.
template <class V>
struct GptOss {
    static typename V::Reg of(typename V::Reg x) {
        const auto g = at_most<V>(x, 7.0f);
        return V::div(g, V::add(V::broadcast(1.0f), exponential<V>(V::mul(V::broadcast(-1.702f), g))));
    }
    static typename V::Reg factor(typename V::Reg up) {
        return V::add(at_most<V>(V::max(V::broadcast(-7.0f), up), 7.0f), V::broadcast(1.0f));
    }
};

template <class V, template <class> class Activation>
void activate(const float *gate, const float *up, float *y, int64_t count) {
    int64_t c = 0;
    for (; up && c + V::lanes <= count; c += V::lanes)
        V::store(y + c, V::mul(Activation<V>::of(V::load(gate + c)), Activation<V>::factor(V::load(up + c))));
    for (; c + V::lanes <= count; c += V::lanes) V::store(y + c, Activation<V>::of(V::load(gate + c)));
    if (c == count) return;
    const int left = static_cast<int>(count - c);
    const auto active = Activation<V>::of(V::load_some(gate + c, left));
    V::store_some(y + c, up ? V::mul(active, Activation<V>::factor(V::load_some(up + c, left))) : active, left);
}

template <class V>
void activate(const float *gate, const float *up, float *y, int64_t count, int64_t activation) {
    (activation == tpiedge::GPT_OSS     ? activate<V, GptOss>
     : activation == tpiedge::TANH      ? activate<V, Tanh>
     : activation == tpiedge::GELU_TANH ? activate<V, GeluTanh>
                                        : activate<V, Silu>)(gate, up, y, count);
}

}  // namespace
