#include "functions.h"
#include "unary.h"

JF_UNARY(trunc, trunc(x))
