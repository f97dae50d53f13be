#include "gated.h"

JF_GATED(reglu, max(splat(0.0f), g))
