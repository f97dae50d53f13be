#include "functions.h"
#include "unary.h"

JF_UNARY(softplus, softplus(x))
