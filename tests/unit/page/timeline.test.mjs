// Tests of how a step's time is drawn.

import assert from "node:assert/strict";
import test from "node:test";

const { laneOf, ticksOf } = await import("../../../tpiedge/page/timeline.js");

test("a span is a rectangle of its length", () => {
  assert.equal(laneOf([[0, 0.001], [0.003, 0.004]], 0.004), "M0.00 0h250.00v1h-250.00zM750.00 0h250.00v1h-250.00z");
  assert.equal(laneOf([], 0.004), "");
});

test("an axis has a few round numbers", () => {
  assert.deepEqual(ticksOf(19.3), [0, 5, 10, 15]);
  assert.deepEqual(ticksOf(0.5), [0, 0.1, 0.2, 0.3, 0.4, 0.5]);
  assert.deepEqual(ticksOf(9000), [0, 2000, 4000, 6000, 8000]);
  for (let ms = 0.01; ms < 1e6; ms *= 1.07) assert.ok([2, 3, 4, 5, 6].includes(ticksOf(ms).length), `${ms}`);
});
