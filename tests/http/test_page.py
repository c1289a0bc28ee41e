import re

import httpx
import pytest

from tpiedge.api.page import page_files

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "dompurify",
}


@pytest.fixture
def http(serve):
    with httpx.Client(base_url=serve(keys=["k"]).url) as http:
        yield http


def addresses(http):
    first = http.get("/")
    return re.findall(r'(?:href|src)="([^"]+)"', first.text)


def test_page_files_need_no_key(http):
    first = http.get("/")
    assert first.status_code == 200
    assert first.headers["content-type"] == "text/html; charset=utf-8"
    found = addresses(http)
    assert any(address.endswith("/app.js") for address in found)
    for address in found:
        assert http.get(address).status_code == 200, address


def test_page_files_have_strict_security_headers(http):
    for address in ("/", *addresses(http), "/page/none/app.js"):
        answer = http.get(address, headers={"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"})
        if answer.status_code == 200:
            policy = answer.headers["content-security-policy"].split("; ")
            assert dict(part.split(" ", 1) for part in policy) == POLICY
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert not any(name.startswith("access-control") for name in answer.headers)
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_page_has_no_inline_scripts_or_styles(http):
    first = http.get("/").text
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", first)


def test_page_files_are_cached_except_the_first(http):
    first = http.get("/")
    assert first.headers["cache-control"] == "no-cache"
    again = http.get("/", headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    for address in addresses(http):
        assert http.get(address).headers["cache-control"] == "max-age=31536000, immutable"


@pytest.mark.fault("H5", "no path leads out of the page's files")
def test_page_files_of_other_versions_or_paths_return_404(http):
    for path in (
        f"/page/{page_files()[0]}/%2e%2e/page.py",
        f"/page/{page_files()[0]}/..%2f..%2fpage.py",
        "/page/0123456789abcdef0123/app.js",
        f"/page/{page_files()[0]}/nothing.js",
        "/page/",
        "/page/x",
    ):
        answer = http.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
    for path in ("%2e%2e/%2e%2e/pyproject.toml", "%2e%2e/%2e%2e/api/app.py", "/etc/passwd", "index.html"):
        assert http.get(f"/page/{page_files()[0]}/{path}").status_code == 404


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}],
    ids=["its own name", "a request", "a frame or a script"],
)
def test_page_files_are_refused_to_foreign_pages(serve, headers):
    with httpx.Client(base_url=serve().url) as http:
        for address in ("/", *addresses(http)):
            assert http.get(address, headers=headers).status_code == 403
        assert http.get("/", headers={"Sec-Fetch-Site": "none"}).status_code == 200
