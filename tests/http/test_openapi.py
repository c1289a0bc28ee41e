"""The document of the API is served as it is, and needs a key where others do."""

import json

import httpx

from tpiedge.api.openapi import document


def test_it_is_served_and_needs_a_key_where_others_do(serve):
    served = httpx.get(f"{serve().url}/openapi.json")
    assert served.status_code == 200
    assert served.json() == json.loads(json.dumps(document()))
    assert httpx.get(f"{serve(keys=['k']).url}/openapi.json").status_code == 401
