#include "unary.h"

JF_UNARY(exp, exp(x))
