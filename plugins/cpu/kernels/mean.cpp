#include "reduce.h"

JF_REDUCE(mean, true)
