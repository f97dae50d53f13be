#include "functions.h"
#include "unary.h"

JF_UNARY(expm1, expm1(x))
