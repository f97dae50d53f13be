#include "unary.h"

JF_UNARY(abs, abs(x))
