#include "convolutions.h"

JF_CONVOLUTION(conv_2d, 2, false, bit(F32) | bit(F16), bit(F32) | bit(F16))
