from __future__ import annotations

import json
import random

from atom_lite.api.sse import json_text


def test_any_text_survives_and_stays_on_one_line():
    rng = random.Random(1)
    alphabet = 'a"\\/\n\r\t\b\x00\x0b\x0c\x1c\x1d\x1e\x7f\x85\u2028\u2029é日😀\ufffd'
    for _ in range(500):
        text = "".join(rng.choices(alphabet, k=rng.randint(0, 12)))
        data = json_text(text)
        assert json.loads(data) == text
        assert len(data.decode().splitlines()) == 1
