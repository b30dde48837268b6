// Batch normalisation between the convolution of a stage and what follows it: channel by channel, the convolution's y
// becomes (y - mean) / deviation * weight + bias, by the moments of the batch (training) or by the running ones
// (evaluation). Moments and sums over a batch are in double precision, sums over a few pixels in single, and what the
// mean loses when it is subtracted as a float is made good channel by channel.
//
// chain.cpp includes this file within its namespace.

typedef double Wide __attribute__((vector_size(8 * LANES)));

constexpr Int STRETCH = 32;  // pixels that are summed in single precision

// What is left of a mean where it is subtracted as a float.
inline double lost(double mean) { return mean - double(float(mean)); }

inline double across(const Wide& lanes) {
    double total = 0;
    for (Int lane = 0; lane < LANES; lane++) total += lanes[lane];
    return total;
}

// All bits set for the images of a block that are there.
inline Mask present(Int images) {
    Mask there = {};
    for (Int lane = 0; lane < images; lane++) there[lane] = -1;
    return there;
}

// value(0) + ... + value(count - 1), over all lanes.
template <typename Value>
inline __attribute__((always_inline)) double summed(Int count, Value value) {
    Wide total = {};
    for (Int start = 0; start < count; start += STRETCH) {
        const Int stop = least(count, start + STRETCH);
        V even = {}, odd = {};
        Int i = start;
        for (; i + 1 < stop; i += 2) even += value(i), odd += value(i + 1);
        if (i < stop) even += value(i);
        total += __builtin_convertvector(even + odd, Wide);
    }
    return across(total);
}

// The mean of each channel over the batch and its inverse deviation, and a step of the running moments towards them.
void take_moments(const Chain& chain, Int index, const Parameters& parameters) {
    const Stage& s = chain.stages[index];
    const Int outputs = s.outputs, pixels = convolution(s).outputs() / outputs;
    const double n = double(chain.batch) * double(pixels);
    double *const mean = chain.moments(index), *const inverse = mean + outputs, *const sums = chain.scratch(index).sums;
    for (Int o = 0; o < 2 * outputs; o++) sums[o] = 0;
    for (Int b = 0; b < chain.blocks(); b++) {
        const V* y = chain.saved(index, b).convolved;
        const Mask there = present(chain.images(b));
        for (Int o = 0; o < outputs; o++, y += pixels)
            sums[o] += summed(pixels, [=](Int i) { return there ? y[i] : V{}; });
    }
    for (Int o = 0; o < outputs; o++) mean[o] = sums[o] / n;
    for (Int b = 0; b < chain.blocks(); b++) {
        const V* y = chain.saved(index, b).convolved;
        const Mask there = present(chain.images(b));
        for (Int o = 0; o < outputs; o++, y += pixels) {
            const V middle = float(mean[o]) - V{};
            sums[outputs + o] += summed(pixels, [=](Int i) {
                const V apart = there ? y[i] - middle : V{};
                return apart * apart;
            });
        }
    }
    for (Int o = 0; o < outputs; o++) {
        const double squares = sums[outputs + o] - n * lost(mean[o]) * lost(mean[o]);
        inverse[o] = 1 / __builtin_sqrt(squares / n + double(s.epsilon));
        parameters.mean[o] += s.momentum * (float(mean[o]) - parameters.mean[o]);
        parameters.variance[o] += s.momentum * (float(squares / (n - 1)) - parameters.variance[o]);
    }
}

// The running moments in the place of a batch's.
void recall_moments(const Stage& s, const Parameters& parameters, double* moments) {
    for (Int o = 0; o < s.outputs; o++) {
        moments[o] = double(parameters.mean[o]);
        moments[s.outputs + o] = 1 / __builtin_sqrt(double(parameters.variance[o]) + double(s.epsilon));
    }
}

// From what the convolution gave to the stage's output, for a block.
void normalise(const Shape& shape, const Shape& conv, const Saved& saved, const double* moments,
               const Parameters& parameters) {
    const Stage& s = shape.s;
    const Int scale = s.pool ? 2 : 1, below = conv.conv_w;
    const V* plane = saved.convolved;
    Mask* winner = saved.winners;
    for (Int o = 0; o < s.outputs; o++, plane += conv.conv_h * below) {
        const double factor = moments[s.outputs + o] * double(parameters.norm_weight[o]);
        const V slope = float(factor) - V{};
        const V offset = float(double(parameters.norm_bias[o]) - moments[o] * double(float(factor))) - V{};
        for (Int y = 0; y < shape.out_h; y++) {
            const V* from = plane + scale * y * below;
            V* to = saved.output + saved.output_map.at(o, y, 0);
            if (!s.pool) {
                for (Int x = 0; x < shape.out_w; x++) to[x] = activated(from[x] * slope + offset, s);
                continue;
            }
            for (Int x = 0; x < shape.out_w; x++, from += 2, winner++) {
                V v[4] = {from[0], from[1], from[below], from[below + 1]};
                for (int i = 0; i < 4; i++) {
                    v[i] = v[i] * slope + offset;
                    if (s.activate_first) v[i] = activated(v[i], s);
                }
                const V best = pooled(v, *winner);
                to[x] = s.activate_first ? best : activated(best, s);
            }
        }
    }
}

// Sums over the batch of the gradients behind the normalisation, and of their products with y - mean; they are the
// gradients of its bias and, but for the deviation, of its weight.
void sum_gradients(const Chain& chain, Int index, const Parameters& gradients) {
    const Shape shape(chain.stages[index]), conv = convolution(chain.stages[index]);
    const Stage& s = shape.s;
    const Int pixels = conv.conv_h * conv.conv_w, pools = shape.out_h * shape.out_w, below = conv.conv_w;
    const double* const moments = chain.moments(index);
    double* const sums = chain.scratch(index).sums;
    for (Int o = 0; o < 2 * s.outputs; o++) sums[o] = 0;
    for (Int b = 0; b < chain.blocks(); b++) {
        const Saved saved = chain.saved(index, b);
        const V* gradient = chain.scratch(index, b).output_gradient;
        for (Int o = 0; o < s.outputs; o++) {
            const V middle = float(moments[o]) - V{};
            Wide total = {}, products = {};
            for (Int y = 0; y < shape.out_h; y++) {
                const V* output = saved.output + saved.output_map.at(o, y, 0);
                const V* from = saved.convolved + o * pixels + (s.pool ? 2 : 1) * y * below;
                const Mask* winner = saved.winners + o * pools + y * shape.out_w;
                V sum = {}, product = {};
                for (Int x = 0; x < shape.out_w; x++) {
                    const V g = back_through(*gradient++, output[x], s);
                    V value;
                    if (s.pool) {
                        const V *p = from + 2 * x, *q = p + below;
                        value = winner[x] == 0 ? p[0] : winner[x] == 1 ? p[1] : winner[x] == 2 ? q[0] : q[1];
                    } else {
                        value = from[x];
                    }
                    sum += g;
                    product += g * (value - middle);
                }
                total += __builtin_convertvector(sum, Wide);
                products += __builtin_convertvector(product, Wide);
            }
            sums[o] += across(total);
            sums[s.outputs + o] += across(products) - lost(moments[o]) * across(total);
        }
    }
    for (Int o = 0; o < s.outputs; o++) {
        if (gradients.norm_bias) gradients.norm_bias[o] = float(sums[o]);
        if (gradients.norm_weight) gradients.norm_weight[o] = float(sums[s.outputs + o] * moments[s.outputs + o]);
    }
}

// The gradient of what the convolution gave, for a block. All pixels of the batch have moved the moments, so all of
// them get a gradient, whoever won a pool; absent images get none.
void back_through_norm(const Chain& chain, Int index, Int block, const Parameters& parameters) {
    const Shape shape(chain.stages[index]), conv = convolution(chain.stages[index]);
    const Stage& s = shape.s;
    const Int pixels = conv.conv_h * conv.conv_w, below = conv.conv_w;
    const double n = double(chain.batch) * double(pixels);
    const double* const moments = chain.moments(index);
    const Saved saved = chain.saved(index, block);
    const Scratch scratch = chain.scratch(index, block);
    const Mask there = present(chain.images(block));
    const V* gradient = scratch.output_gradient;
    const Mask* winner = saved.winners;
    for (Int o = 0; o < s.outputs; o++) {
        const double inverse = moments[s.outputs + o], factor = inverse * double(parameters.norm_weight[o]);
        const double incline = -factor * inverse * inverse * scratch.sums[s.outputs + o] / n;
        const V slope = float(factor) - V{}, middle = float(moments[o]) - V{}, tilt = float(incline) - V{};
        const V level = float(-factor * scratch.sums[o] / n - incline * lost(moments[o])) - V{};
        const V* from = saved.convolved + o * pixels;
        V* to = scratch.convolved_gradient + o * pixels;
        for (Int i = 0; i < pixels; i++) to[i] = there ? level + tilt * (from[i] - middle) : V{};
        for (Int y = 0; y < shape.out_h; y++, to += (s.pool ? 2 : 1) * below) {
            const V* output = saved.output + saved.output_map.at(o, y, 0);
            for (Int x = 0; x < shape.out_w; x++) {
                const V g = slope * back_through(*gradient++, output[x], s);
                if (!s.pool) {
                    to[x] += g;
                    continue;
                }
                V *p = to + 2 * x, *q = p + below;
                p[0] += *winner == 0 ? g : V{};
                p[1] += *winner == 1 ? g : V{};
                q[0] += *winner == 2 ? g : V{};
                q[1] += *winner == 3 ? g : V{};
                winner++;
            }
        }
    }
}
