#include "convolutions.h"

JF_CONVOLUTION(conv_1d_depthwise, 1, true, bit(F32), bit(F32))
