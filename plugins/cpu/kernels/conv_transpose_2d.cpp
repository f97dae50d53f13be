#include "transposed.h"

JF_TRANSPOSED(conv_transpose_2d, 2)
