#include "convolutions.h"

JF_CONVOLUTION(conv_1d, 1, false, bit(F32), bit(F32))
