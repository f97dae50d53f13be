// Random jobs on pools of several sizes: each part is made once, after all parts of the segment before; parts meet; the
// pieces of a segment are taken once each; and the caller makes what sleeping workers have not begun.
//     pool_check SEED JOBS WORKERS      prints the number of failures
// WORKERS: of one more pool; with more of them than CPUs nobody looks before going to sleep.
#include "pool.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

using namespace jackfield;

namespace {

constexpr int PIECES = 100;
std::atomic<int> failures{0};

void expect(bool good, const char* what) {
    if (!good && failures++ < 20) fprintf(stderr, "%s\n", what);
}

struct Segment {
    int parts, meetings, turns;        // turns: of an empty loop, how long a part takes
    std::vector<std::atomic<int>> at;  // by part: how many meetings are behind it; -1 before it begins
    std::atomic<int> pieces{0};

    Segment(int parts_, int meetings_, int turns_)
        : parts(parts_), meetings(meetings_), turns(turns_), at(size_t(parts_)) {
        for (auto& each : at) each = -1;
    }
    bool done() const {
        return std::all_of(at.begin(), at.end(), [&](const auto& each) { return each == meetings + 1; });
    }
};

struct Random : Job {
    Pool& pool;
    std::vector<std::unique_ptr<Segment>> list;
    std::vector<int> counts;
    mutable std::atomic<int> by_caller{0};  // parts of others
    const std::thread::id caller = std::this_thread::get_id();

    Random(Pool& pool_, std::mt19937& dice) : pool(pool_) {
        const auto below = [&](int n) { return int(dice() % unsigned(n)); };
        const int team = 2 + below(pool.size() - 1);
        for (int i = below(60); i >= 0; i--) {
            const int n = below(3) ? 1 + below(team) : team;
            const int meetings = n > 1 && below(3) == 0 ? 1 + below(2) : 0;
            list.push_back(std::make_unique<Segment>(n, meetings, below(5) ? below(300) : below(60000)));
            counts.push_back(n);
        }
        segments = counts.size();
        parts = counts.data();
    }

    void make(size_t s, int part) const override {
        Segment& segment = *list[s];
        std::atomic<int>& at = segment.at[size_t(part)];
        expect(s == 0 || list[s - 1]->done(), "a segment begins too early");
        expect(at++ == -1, "a part is made twice");
        if (part && std::this_thread::get_id() == caller) by_caller++;
        if (part == 0) pool.counter(s + 1).store(0, std::memory_order_relaxed);
        for (volatile int i = 0; i < segment.turns; i = i + 1) {
        }
        for (int m = 0; m < segment.meetings; m++) {
            pool.meet(s, segment.parts, m + 1 == segment.meetings);
            for (const auto& other : segment.at) expect(other >= m, "a part leaves a meeting before others come");
            at++;
        }
        while (pool.counter(s).fetch_add(1, std::memory_order_relaxed) < PIECES) segment.pieces++;
        at = segment.meetings + 1;
    }
};

void random_jobs(Pool& pool, std::mt19937& dice, int jobs) {
    for (int i = 0; i < jobs; i++) {
        const Random job(pool, dice);
        pool.run(*std::max_element(job.counts.begin(), job.counts.end()), job);
        for (const auto& segment : job.list) {
            expect(segment->done(), "a part is not made");
            expect(segment->pieces == PIECES, "pieces are lost or taken twice");
        }
        if (dice() % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(dice() % 200));
    }
}

void jobs_for_sleepers(Pool& pool, std::mt19937& dice) {
    int found = 0;
    for (int i = 0; i < 50 && !found; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const Random job(pool, dice);
        pool.run(*std::max_element(job.counts.begin(), job.counts.end()), job);
        found = job.by_caller;
    }
    expect(found > 0, "the caller waits for workers that sleep");
}

}  // namespace

int main(int argc, char** argv) {
    std::mt19937 dice(unsigned(argc > 1 ? atoi(argv[1]) : 0));
    for (const int workers : {2, 3, 5, 8, argc > 3 ? atoi(argv[3]) : 2}) {
        Pool pool(workers);
        random_jobs(pool, dice, argc > 2 ? atoi(argv[2]) : 100);
        jobs_for_sleepers(pool, dice);
    }
    printf("%d failures\n", failures.load());
    return failures != 0;
}
