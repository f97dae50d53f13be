#include "reduce.h"

JF_REDUCE(sum, false)
