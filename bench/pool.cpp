// What a run of the CPU wheel costs where its kernels cost nothing, and what it loses to a busy neighbour. The pool and
// the program are the wheel's own; the kernels are made up.
//
//     pool THREADS SECONDS      prints lines: name value
//
// one_ns, all_ns, turns_ns     nanoseconds a step: of one worker, of all workers, and of both in turn
// idle_us                      CPU time of the process in the tenth of a second after a run, in microseconds a worker
// alone, beside                pieces of work a second without and with a busy process beside
// fair                         the share of `alone` that the scheduler gives to THREADS of THREADS + 1 busy threads
#include "program.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace jackfield;

namespace {

constexpr int STEPS = 1000, PIECES = 8;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_seconds() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return double(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * double(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

void nothing(const Step&, const Team&) {}
int32_t all(const Step&, int32_t most) { return most; }
int32_t one(const Step&, int32_t) { return 1; }

// Some 10 us in eight pieces, as a product shares out its groups.
void work(const Step&, const Team& team) {
    volatile double sum = 0;
    for (int64_t i = team.index; (i = team.count > 1 ? team.next() : i) < PIECES; i++)
        for (int k = 0; k < 1000; k++) sum = sum + 1.0 / (k + 1);
}

const Kernel EMPTY_ONE{"one", nullptr, 0, nullptr, 0, 0, nullptr, nothing, one, nullptr, nullptr};
const Kernel EMPTY_ALL{"all", nullptr, 0, nullptr, 0, 0, nullptr, nothing, all, nullptr, nullptr};
const Kernel WORK{"work", nullptr, 0, nullptr, 0, 0, nullptr, work, all, nullptr, nullptr};

Program program(const std::shared_ptr<Pool>& pool, const Kernel& even, const Kernel& odd, int steps) {
    std::vector<std::unique_ptr<Bound>> groups;
    for (int i = 0; i < steps; i++) {
        auto bound = std::make_unique<BoundStep>();
        bound->kernel = i % 2 ? &odd : &even;
        bound->op = bound->kernel->op;
        for (int64_t& n : bound->step.out.shape) n = 1;
        std::vector<std::unique_ptr<BoundStep>> steps_of_group;
        steps_of_group.push_back(std::move(bound));
        groups.push_back(std::make_unique<Bound>(nullptr, std::move(steps_of_group)));
    }
    return Program(pool, std::move(groups), nullptr, 0);
}

double step_ns(Program& made, double seconds) {
    double best = 1e9;
    for (const double stop = now() + seconds; now() < stop;) {
        const double begin = now();
        made.run();
        best = std::min(best, (now() - begin) / STEPS * 1e9);
    }
    return best;
}

double rate(Program& made, int steps, double seconds) {
    int64_t runs = 0;
    const double begin = now();
    for (; now() < begin + seconds; runs++) made.run();
    return double(runs * steps * PIECES) / (now() - begin);
}

double idle_us(Program& made, int threads) {
    double most = 0;
    for (int i = 0; i < 5; i++) {
        made.run();
        const double before = cpu_seconds();
        usleep(100000);
        most = std::max(most, (cpu_seconds() - before) / threads * 1e6);
    }
    return most;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    const int threads = atoi(argv[1]);
    const double seconds = atof(argv[2]);
    const auto pool = std::make_shared<Pool>(threads);
    Program ones = program(pool, EMPTY_ONE, EMPTY_ONE, STEPS), alls = program(pool, EMPTY_ALL, EMPTY_ALL, STEPS);
    Program turns = program(pool, EMPTY_ONE, EMPTY_ALL, STEPS), busy = program(pool, WORK, WORK, 200);
    printf("one_ns %.1f\n", step_ns(ones, seconds));
    printf("all_ns %.1f\n", step_ns(alls, seconds));
    printf("turns_ns %.1f\n", step_ns(turns, seconds));
    printf("idle_us %.1f\n", idle_us(alls, threads));
    const double alone = rate(busy, 200, 2 * seconds);
    const pid_t neighbour = fork();
    if (neighbour == 0)
        for (volatile int64_t i = 0;; i = i + 1) {
        }
    usleep(200000);  // the scheduler moves it to where it belongs
    const double beside = rate(busy, 200, 4 * seconds);
    kill(neighbour, SIGKILL);
    waitpid(neighbour, nullptr, 0);
    const double cpus = double(std::thread::hardware_concurrency()), n = threads;
    printf("alone %.0f\nbeside %.0f\n", alone, beside);
    printf("fair %.3f\n", n * std::min(1.0, cpus / (n + 1)) / std::min(n, cpus));
}
