#include "pooling.h"

JF_POOLING(pool_1d, 1)
