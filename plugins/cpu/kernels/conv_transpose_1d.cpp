#include "transposed.h"

JF_TRANSPOSED(conv_transpose_1d, 1)
