"""How weights are stored: the words of flags and manifests, and what each of them means in bits."""

from enum import Enum


class Precision(Enum):
    """How weights are stored. The value is the word used in flags, manifests and messages."""

    F32 = "f32"
    BF16 = "bf16"
    Q8 = "q8"
    Q4 = "q4"

    @property
    def bits(self) -> int:
        """Bits of one stored weight, its scale not counted."""
        return _BITS[self]

    @property
    def quantised(self) -> bool:
        """Whether weights are integers with scales."""
        return self in (Precision.Q8, Precision.Q4)

    @property
    def of_vectors(self) -> "Precision":
        """How norms and biases are stored beside such matrices."""
        return Precision.F32 if self.quantised else self


_BITS = {Precision.F32: 32, Precision.BF16: 16, Precision.Q8: 8, Precision.Q4: 4}
