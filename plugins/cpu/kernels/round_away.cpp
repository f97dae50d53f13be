#include "functions.h"
#include "unary.h"

JF_UNARY(round_away, round_away(x))
