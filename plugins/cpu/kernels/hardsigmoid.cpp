#include "unary.h"

// What may be NaN stands second, so that it stays.
JF_UNARY(hardsigmoid, min(splat(1.0f), max(splat(0.0f), (x + 3.0f) / 6.0f)))
