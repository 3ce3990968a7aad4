use super::*;

#[test]
fn every_task_runs_once_over_many_dispatches() {
    for threads in [1, 2, 3, 8] {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads);
        let sum = AtomicUsize::new(0);
        for round in 0..20_000 {
            let tasks = round % 7;
            pool.run(tasks, |i| {
                sum.fetch_add(i + 1, Ordering::Relaxed);
            });
            let expected = tasks * (tasks + 1) / 2;
            assert_eq!(sum.swap(0, Ordering::Relaxed), expected);
        }
    }
}

#[test]
fn sleeping_workers_wake_up_and_take_tasks() {
    let pool = Pool::new(2).unwrap();
    for _ in 0..5 {
        std::thread::sleep(10 * SPIN);
        let threads = Mutex::new(std::collections::HashSet::new());
        pool.run(2, |_| {
            lock(&threads).insert(std::thread::current().id());
            let begin = Instant::now();
            while lock(&threads).len() < 2 && begin.elapsed() < Duration::from_secs(10) {
                std::thread::yield_now();
            }
        });
        assert_eq!(threads.into_inner().unwrap().len(), 2);
    }
}

#[test]
fn chunks_cover_the_slice_without_overlap() {
    let pool = Pool::new(3).unwrap();
    for (len, chunk) in [(0, 4), (1, 4), (4, 4), (10, 4), (1000, 1), (5, 0), (3, 100)] {
        let mut data = vec![0u32; len];
        pool.chunks_mut(&mut data, chunk, |index, part| {
            for value in part {
                *value += index as u32 + 1;
            }
        });
        let expected: Vec<u32> = (0..len).map(|i| (i / chunk.max(1)) as u32 + 1).collect();
        assert_eq!(data, expected);
    }
}

#[test]
fn panics_reach_the_caller_and_the_pool_stays_usable() {
    let pool = Pool::new(2).unwrap();
    for _ in 0..50 {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, |i| {
                if i == 37 {
                    std::panic::resume_unwind(Box::new("task 37"));
                }
            });
        }));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"task 37"));
        let count = AtomicUsize::new(0);
        pool.run(100, |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 100);
    }
}

#[test]
fn stages_run_one_after_another() {
    for threads in [1, 2, 3, 8] {
        let pool = Pool::new(threads).unwrap();
        for round in 0..5000 {
            let tasks = [round % 5, 3, round % 3];
            let ran = [(); 3].map(|()| AtomicUsize::new(0));
            let finished = AtomicUsize::new(0);
            pool.run_stages(
                tasks,
                |stage, task| {
                    assert_eq!(finished.load(Ordering::Relaxed), stage);
                    ran[stage].fetch_add(task + 1, Ordering::Relaxed);
                },
                |stage| {
                    let sum = tasks[stage] * (tasks[stage] + 1) / 2;
                    assert_eq!(ran[stage].load(Ordering::Relaxed), sum);
                    assert_eq!(finished.fetch_add(1, Ordering::Relaxed), stage);
                },
            );
            assert_eq!(finished.into_inner(), 3);
        }
    }
}

#[test]
fn panics_in_or_between_stages_reach_the_caller() {
    let pool = Pool::new(3).unwrap();
    for round in 0..200 {
        let (stage, between) = (round % 2, round % 4 > 1);
        let late = AtomicUsize::new(0);
        let panic = |now: bool| {
            if now {
                std::panic::resume_unwind(Box::new("stage"));
            }
        };
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run_stages(
                [20, 20],
                |s, task| {
                    late.fetch_add(usize::from(s > stage), Ordering::Relaxed);
                    panic(!between && s == stage && task == 7);
                },
                |s| panic(between && s == stage),
            );
        }));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"stage"));
        assert_eq!(late.into_inner(), 0);
        pool.run_stages([5, 5], |_, _| (), |_| ());
    }
}

#[test]
fn nested_and_concurrent_runs_complete() {
    let pool = Pool::new(2).unwrap();
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.run(5, |_| {
                        pool.run(5, |_| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 2 * 200 * 25);
}

#[test]
fn invalid_thread_counts_are_rejected() {
    assert!(matches!(
        Pool::new(0),
        Err(PoolError::Threads { requested: 0 })
    ));
    assert!(Pool::new(usize::MAX).is_err());
}

#[test]
fn dropping_a_pool_ends_its_workers() {
    for threads in [1, 2, 5] {
        drop(Pool::new(threads).unwrap());
        let pool = Pool::new(threads).unwrap();
        pool.run(10, |_| ());
        std::thread::sleep(3 * SPIN);
        drop(pool);
    }
}
