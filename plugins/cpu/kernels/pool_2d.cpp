#include "pooling.h"

JF_POOLING(pool_2d, 2)
