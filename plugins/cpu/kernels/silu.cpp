#include "unary.h"

JF_UNARY(silu, silu(x))
