#include "functions.h"
#include "unary.h"

JF_UNARY(log, log(x))
