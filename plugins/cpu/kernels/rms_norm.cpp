#include "rms.h"

JF_NORM(rms_norm, Rms)
