// What a run of the CPU wheel costs where its kernels cost nothing, and what it loses to a busy neighbour. The pool and
// the program are the wheel's own; the kernels are made up.
//
//     pool THREADS SECONDS      prints lines: name value
//
// one_ns, all_ns, turns_ns     nanoseconds a step: of one worker, of all workers, and of both in turn; the fastest run
// of
//                              those in which each worker made its own parts
// exchange_ns                  the same for two bare threads: each writes a cache line and waits for the other's
// idle_us                      CPU time of a worker in the tenth of a second after a run, in microseconds: median
// beside, fair                 pieces of work a second beside a busy process as a share of those alone, median of
// rounds
//                              in turn; and what the scheduler gives to THREADS of THREADS + 1 busy threads
// bound, bound_fair            the same beside a busy process that keeps to one CPU
#include "program.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <ctime>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace jackfield;

namespace {

constexpr int STEPS = 1000, PIECES = 8;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> all) {
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

// CPU time of all threads but the caller's, in seconds. By their own clocks: the figures of getrusage and /proc leave
// out what a thread has used since the last tick while it runs, so that the end of a run is taken for idling.
double others_seconds() {
    double total = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        const int thread = std::stoi(task.path().filename());
        timespec used{};
        if (thread != getpid() && clock_gettime(clockid_t(~unsigned(thread) << 3 | 6), &used) == 0)  // as in pthreads
            total += double(used.tv_sec) + 1e-9 * double(used.tv_nsec);
    }
    return total;
}

thread_local bool is_caller = false;
int64_t strange = 0;  // parts that the caller made for another worker

void nothing(const Step&, const Team& team) {
    if (is_caller && team.index) strange++;
}
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

// all: every second step at least is made by all workers.
double step_ns(Program& made, double seconds, int all) {
    double best = 1e9;
    for (const double stop = now() + seconds; now() < stop;) {
        strange = 0;
        const double begin = now();
        made.run();
        const double took = (now() - begin) / STEPS * 1e9;
        if (strange * 100 <= all) best = std::min(best, took);
    }
    return best;
}

struct alignas(128) Line {
    std::atomic<int> value{0};
};

void exchange(Line& mine, const Line& other, int first) {
    for (int i = first; i < first + STEPS; i++) {
        mine.value.store(i, std::memory_order_release);
        while (other.value.load(std::memory_order_acquire) < i) {
        }
    }
}

double exchange_ns(double seconds) {
    static Line lines[2];
    std::atomic<int> begun{0};
    std::atomic<bool> over{false};
    std::thread second([&] {
        for (int i = 0; !over;)
            if (begun > i) exchange(lines[1], lines[0], i++ * STEPS + 1);
    });
    double best = 1e9;
    int i = 0;
    for (const double stop = now() + seconds; now() < stop; i++) {
        begun = i + 1;
        while (lines[1].value < i * STEPS + 1) {
        }
        const double begin = now();
        exchange(lines[0], lines[1], i * STEPS + 1);
        best = std::min(best, (now() - begin) / STEPS * 1e9);
    }
    over = true;
    second.join();
    return best;
}

double rate(Program& made, int steps, double seconds) {
    int64_t runs = 0;
    const double begin = now();
    for (; now() < begin + seconds; runs++) made.run();
    return double(runs * steps * PIECES) / (now() - begin);
}

double idle_us(Program& made, int threads) {
    std::vector<double> spent;
    for (int i = 0; i < 9; i++) {
        made.run();
        const double before = others_seconds();
        usleep(100000);
        spent.push_back(threads > 1 ? (others_seconds() - before) / (threads - 1) * 1e6 : 0);
    }
    return median(spent);
}

// cpu: where the busy process is; -1: anywhere.
double beside(Program& made, int steps, double seconds, int cpu) {
    const pid_t neighbour = fork();
    if (neighbour == 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(size_t(std::max(cpu, 0)), &set);
        if (cpu >= 0) sched_setaffinity(0, sizeof set, &set);
        for (volatile int64_t i = 0;; i = i + 1) {
        }
    }
    std::vector<double> shares;
    for (int i = 0; i < 7; i++) {
        kill(neighbour, SIGSTOP);
        usleep(50000);
        const double alone = rate(made, steps, seconds);
        kill(neighbour, SIGCONT);
        usleep(50000);  // the scheduler moves it to where it belongs
        shares.push_back(rate(made, steps, seconds) / alone);
    }
    kill(neighbour, SIGKILL);
    waitpid(neighbour, nullptr, 0);
    return median(shares);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    const int threads = atoi(argv[1]);
    const double seconds = atof(argv[2]);
    is_caller = true;
    const auto pool = std::make_shared<Pool>(threads);
    Program ones = program(pool, EMPTY_ONE, EMPTY_ONE, STEPS), alls = program(pool, EMPTY_ALL, EMPTY_ALL, STEPS);
    Program turns = program(pool, EMPTY_ONE, EMPTY_ALL, STEPS), busy = program(pool, WORK, WORK, 200);
    printf("one_ns %.1f\n", step_ns(ones, seconds, STEPS));
    printf("all_ns %.1f\n", step_ns(alls, seconds, STEPS));
    printf("turns_ns %.1f\n", step_ns(turns, seconds, STEPS / 2));
    printf("exchange_ns %.1f\n", exchange_ns(seconds));
    printf("idle_us %.1f\n", idle_us(busy, threads));
    const double cpus = double(std::thread::hardware_concurrency()), n = threads;
    const double fair = n * std::min(1.0, cpus / (n + 1)) / std::min(n, cpus);
    printf("beside %.3f\nfair %.3f\n", beside(busy, 200, seconds, -1), fair);
    cpu_set_t mine;
    sched_getaffinity(0, sizeof mine, &mine);
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(size_t(last), &mine)) last--;
    printf("bound %.3f\nbound_fair %.3f\n", beside(busy, 200, seconds, last), n == cpus ? (n - 0.5) / n : fair);
}
