// Random chains through the kernels, in buffers of exactly the size they ask for, against plain loops in double
// precision. test_build.py compiles this with the address and undefined-behaviour sanitizers.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "chain.h"

namespace {

std::mt19937 generator(1);

int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(generator); }

// Small whole numbers: exact in float and in double, so the comparison is exact and ties are common.
std::vector<float> numbers(size_t count, int limit) {
    std::vector<float> v(count);
    for (float& f : v) f = float(between(-limit, limit));
    return v;
}

struct Block {
    char* data;
    explicit Block(int64_t bytes) : data(static_cast<char*>(std::aligned_alloc(64, bytes))) {
        std::memset(data, 0, bytes);
    }
    ~Block() { std::free(data); }
};

struct Layer {
    Stage s;
    int conv_h, conv_w, out_h, out_w;
    std::vector<float> weight, bias, weight_gradient, bias_gradient;
    std::vector<double> output, input_gradient, true_weight_gradient, true_bias_gradient;
    std::vector<size_t> source;  // for each output, the convolution's pixel it came from
    // of a normalisation: its parameters, their gradients, the running moments and what those are to become
    std::vector<float> factor, shift, factor_gradient, shift_gradient, mean, variance;
    std::vector<double> true_factor_gradient, true_shift_gradient, true_mean, true_variance;
    std::vector<double> standard, inverse;  // the convolution's output, normalised; the inverse deviation of each channel
};

double activated(double v, const Stage& s) {
    if (s.activation == 1) return v > 0 ? v : 0;
    if (s.activation == 2) return v > 0 ? v : v * s.slope;
    return v;
}

// Calls with every channel and pixel of the convolution's output.
template <typename Call>
void everywhere(const Layer& l, int batch, Call call) {
    size_t index = 0;
    for (int n = 0; n < batch; n++)
        for (int o = 0; o < l.s.outputs; o++)
            for (int i = 0; i < l.conv_h * l.conv_w; i++) call(o, index++);
}

void normalise(Layer& l, std::vector<double>& conv, int batch) {
    const double n = double(batch) * l.conv_h * l.conv_w;
    std::vector<double> mean(l.s.outputs), squares(l.s.outputs);
    everywhere(l, batch, [&](int o, size_t i) { mean[o] += conv[i] / n; });
    everywhere(l, batch, [&](int o, size_t i) { squares[o] += (conv[i] - mean[o]) * (conv[i] - mean[o]); });
    l.inverse.resize(l.s.outputs), l.true_mean.resize(l.s.outputs), l.true_variance.resize(l.s.outputs);
    for (int o = 0; o < l.s.outputs; o++) {
        l.inverse[o] = 1 / std::sqrt(squares[o] / n + l.s.epsilon);
        l.true_mean[o] = l.mean[o] + l.s.momentum * (mean[o] - l.mean[o]);
        l.true_variance[o] = l.variance[o] + l.s.momentum * (squares[o] / (n - 1) - l.variance[o]);
    }
    l.standard.resize(conv.size());
    everywhere(l, batch, [&](int o, size_t i) {
        l.standard[i] = (conv[i] - mean[o]) * l.inverse[o];
        conv[i] = l.standard[i] * l.factor[o] + l.shift[o];
    });
}

// The gradient behind a normalisation becomes that of the convolution's output.
void back_through_norm(Layer& l, std::vector<double>& gradient, int batch) {
    const double n = double(batch) * l.conv_h * l.conv_w;
    l.true_shift_gradient.assign(l.s.outputs, 0), l.true_factor_gradient.assign(l.s.outputs, 0);
    everywhere(l, batch, [&](int o, size_t i) { l.true_shift_gradient[o] += gradient[i]; });
    everywhere(l, batch, [&](int o, size_t i) { l.true_factor_gradient[o] += gradient[i] * l.standard[i]; });
    everywhere(l, batch, [&](int o, size_t i) {
        const double moved = (l.true_shift_gradient[o] + l.standard[i] * l.true_factor_gradient[o]) / n;
        gradient[i] = (gradient[i] - moved) * l.inverse[o] * l.factor[o];
    });
}

void forward(Layer& l, const std::vector<double>& in, int batch) {
    const Stage& s = l.s;
    std::vector<double> conv(size_t(batch) * s.outputs * l.conv_h * l.conv_w);
    size_t index = 0;
    for (int n = 0; n < batch; n++)
        for (int o = 0; o < s.outputs; o++)
            for (int y = 0; y < l.conv_h; y++)
                for (int x = 0; x < l.conv_w; x++, index++) {
                    double sum = l.bias[o];
                    for (int c = 0; c < s.channels; c++)
                        for (int i = 0; i < s.kernel_y; i++)
                            for (int j = 0; j < s.kernel_x; j++) {
                                const int yy = y * s.stride_y + i - s.pad_y, xx = x * s.stride_x + j - s.pad_x;
                                if (yy < 0 || xx < 0 || yy >= s.height || xx >= s.width) continue;
                                sum += in[((size_t(n) * s.channels + c) * s.height + yy) * s.width + xx] *
                                       l.weight[((o * s.channels + c) * s.kernel_y + i) * s.kernel_x + j];
                            }
                    conv[index] = sum;
                }
    if (s.norm) normalise(l, conv, batch);
    l.output.clear(), l.source.clear();
    for (int plane = 0; plane < batch * s.outputs; plane++)
        for (int y = 0; y < l.out_h; y++)
            for (int x = 0; x < l.out_w; x++) {
                const int scale = s.pool ? 2 : 1;
                const size_t corner = (size_t(plane) * l.conv_h + scale * y) * l.conv_w + scale * x;
                size_t best = corner;
                if (s.pool)
                    for (size_t other : {corner + 1, corner + l.conv_w, corner + l.conv_w + 1})
                        if (conv[other] > conv[best]) best = other;
                l.output.push_back(activated(conv[best], s)), l.source.push_back(best);
            }
}

std::vector<double> backward(Layer& l, const std::vector<double>& in, const std::vector<double>& gradient, int batch) {
    const Stage& s = l.s;
    std::vector<double> into(in.size()), conv(size_t(batch) * s.outputs * l.conv_h * l.conv_w);
    l.true_weight_gradient.assign(l.weight.size(), 0), l.true_bias_gradient.assign(s.outputs, 0);
    for (size_t k = 0; k < gradient.size(); k++) {
        double g = gradient[k];
        if (s.activation == 1 && l.output[k] <= 0) g = 0;
        if (s.activation == 2 && l.output[k] <= 0) g *= s.slope;
        conv[l.source[k]] += g;
    }
    if (s.norm) back_through_norm(l, conv, batch);
    for (size_t pixel = 0; pixel < conv.size(); pixel++) {
        const double g = conv[pixel];
        if (g == 0) continue;
        const size_t plane = pixel / (size_t(l.conv_h) * l.conv_w);
        const int y = int(pixel / l.conv_w % l.conv_h), x = int(pixel % l.conv_w);
        const size_t n = plane / s.outputs, o = plane % s.outputs;
        l.true_bias_gradient[o] += g;
        for (int c = 0; c < s.channels; c++)
            for (int i = 0; i < s.kernel_y; i++)
                for (int j = 0; j < s.kernel_x; j++) {
                    const int yy = y * s.stride_y + i - s.pad_y, xx = x * s.stride_x + j - s.pad_x;
                    if (yy < 0 || xx < 0 || yy >= s.height || xx >= s.width) continue;
                    const size_t at = ((n * s.channels + c) * s.height + yy) * s.width + xx;
                    const size_t w = ((o * s.channels + c) * s.kernel_y + i) * s.kernel_x + j;
                    l.true_weight_gradient[w] += g * in[at];
                    into[at] += g * l.weight[w];
                }
    }
    return into;
}

// Whole numbers are exact. What a normalisation makes of them is not, and gradients through it are the small rests of
// large ones: they are compared beside the largest number so far.
bool exact = true;
double largest = 1;

template <typename A, typename B>
void same(const A& ours, const B& truth, const char* what) {
    for (const double value : truth) largest = std::fmax(largest, std::fabs(value));
    for (size_t i = 0; i < truth.size(); i++)
        if (std::fabs(double(ours[i]) - double(truth[i])) > 1e-5 * (exact ? 1 + std::fabs(double(truth[i])) : largest)) {
            std::fprintf(stderr, "%s differs at %zu: %g instead of %g\n", what, i, double(ours[i]), double(truth[i]));
            std::exit(1);
        }
}

void once(const Kernels* kernels) {
    std::vector<Layer> layers;
    const bool wide = between(0, 9) == 0;  // more channels than a mask has bits, more numbers in a row than registers
    int channels = wide ? between(20, 30) : between(1, 7), height = between(1, 15), width = between(1, 15);
    const int batch = between(1, 37), count = between(1, 3);
    bool normed = false;
    for (int i = 0; i < count; i++) {
        Layer l{};
        Stage& s = l.s;
        s.channels = channels, s.height = height, s.width = width, s.outputs = wide ? between(30, 70) : between(1, 13);
        s.pad_y = between(0, 3), s.pad_x = between(0, 3), s.stride_y = between(1, 3), s.stride_x = between(1, 3);
        s.kernel_y = between(1, std::min(5, height + 2 * s.pad_y));
        s.kernel_x = between(1, std::min(5, width + 2 * s.pad_x));
        l.conv_h = (height + 2 * s.pad_y - s.kernel_y) / s.stride_y + 1;
        l.conv_w = (width + 2 * s.pad_x - s.kernel_x) / s.stride_x + 1;
        // behind a normalisation there are no whole numbers: rounding would decide who wins a pool or is below zero
        s.pool = !normed && between(0, 1) && l.conv_h > 1 && l.conv_w > 1;
        s.activation = normed ? 0 : between(0, 2), s.activate_first = between(0, 1), s.slope = 0.5f;
        s.norm = between(0, 2) == 0 && batch * l.conv_h * l.conv_w > 1, s.epsilon = 0.5f, s.momentum = 0.25f;
        normed |= s.norm != 0;
        if (s.norm) {
            l.factor = numbers(s.outputs, 2), l.shift.assign(s.outputs, 0.3f);
            l.mean = numbers(s.outputs, 2), l.variance.assign(s.outputs, 2.0f);
            l.factor_gradient.resize(s.outputs), l.shift_gradient.resize(s.outputs);
        }
        l.out_h = s.pool ? l.conv_h / 2 : l.conv_h, l.out_w = s.pool ? l.conv_w / 2 : l.conv_w;
        l.weight = numbers(size_t(s.outputs) * channels * s.kernel_y * s.kernel_x, 1), l.bias = numbers(s.outputs, 2);
        l.weight_gradient.resize(l.weight.size()), l.bias_gradient.resize(s.outputs);
        channels = s.outputs, height = l.out_h, width = l.out_w;
        layers.push_back(l);
    }
    const Stage& first = layers[0].s;
    const int64_t inputs = int64_t(first.channels) * first.height * first.width;
    std::vector<float> x = numbers(size_t(batch) * inputs, 2);

    std::vector<Stage> stages;
    std::vector<Parameters> parameters, gradients;
    for (Layer& l : layers) {
        const int64_t kernel = int64_t(l.s.kernel_y) * l.s.kernel_x;
        const Tensor4 weight = {l.weight.data(), {l.s.channels * kernel, kernel, l.s.kernel_x, 1}};
        Tensor4 gradient = weight;
        gradient.data = l.weight_gradient.data();
        stages.push_back(l.s);
        parameters.push_back({weight, l.bias.data(), l.factor.data(), l.shift.data(), l.mean.data(), l.variance.data()});
        gradients.push_back(
            {gradient, l.bias_gradient.data(), l.factor_gradient.data(), l.shift_gradient.data(), nullptr, nullptr});
    }
    exact = !normed, largest = 1;
    const int64_t blocks = (batch + kernels->lanes - 1) / kernels->lanes;
    const size_t outputs = size_t(batch) * channels * height * width;
    Block saved(blocks * kernels->saved_bytes(stages.data(), count));
    Block scratch(kernels->scratch_bytes(stages.data(), count, normed ? blocks : 1));
    std::vector<float> output(outputs), evaluated(outputs), into(x.size());
    const Tensor4 input = {x.data(), {inputs, int64_t(first.height) * first.width, first.width, 1}};

    // twice: the second time, the memory is no longer fresh
    for (int turn = 0; turn < 2; turn++) {
        std::vector<std::vector<double>> values = {std::vector<double>(x.begin(), x.end())};
        for (Layer& l : layers) forward(l, values.back(), batch), values.push_back(l.output);
        kernels->forward(stages.data(), count, batch, &input, parameters.data(), output.data(), saved.data,
                         scratch.data, 1, normed);
        same(output, values.back(), "output");
        for (const Layer& l : layers) same(l.mean, l.true_mean, "mean"), same(l.variance, l.true_variance, "variance");
        const std::vector<float> up = numbers(outputs, 2);
        kernels->backward(stages.data(), count, batch, up.data(), parameters.data(), gradients.data(), into.data(),
                          saved.data, scratch.data);
        std::vector<double> gradient(up.begin(), up.end());
        for (int i = count - 1; i >= 0; i--) {
            gradient = backward(layers[i], values[i], gradient, batch);
            same(layers[i].factor_gradient, layers[i].true_factor_gradient, "normalisation's weight gradient");
            same(layers[i].shift_gradient, layers[i].true_shift_gradient, "normalisation's bias gradient");
            same(layers[i].weight_gradient, layers[i].true_weight_gradient, "weight gradient");
            same(layers[i].bias_gradient, layers[i].true_bias_gradient, "bias gradient");
        }
        same(into, gradient, "input gradient");
        Block one(kernels->saved_bytes(stages.data(), count));
        kernels->forward(stages.data(), count, batch, &input, parameters.data(), evaluated.data(), one.data,
                         scratch.data, 0, 0);
        if (!normed) same(evaluated, values.back(), "output without a backward pass");
    }
}

}  // namespace

int main() {
    const Kernels* kernels = fedgraft_kernels_3(0);
    const int chains = 40;
    for (int i = 0; i < chains; i++) once(kernels);
    std::printf("%d chains agree with plain loops\n", chains);
    return 0;
}
