//! Oja's rule: closed forms and convergence.

use super::*;

fn basis(random: &mut Random, rank: usize, size: usize) -> Vec<f32> {
    let shape = KvShape {
        layers: 1,
        kv_heads: 1,
        head_size: size,
    };
    random_bases(random, shape).sides()[0].components[..rank * size].to_vec()
}

/// Vectors along the axes whose second moment is exactly diagonal, with these energies.
fn axes(energies: &[f32]) -> Vec<Vec<f32>> {
    let size = energies.len();
    let along = |i: usize| {
        let mut x = vec![0.0; size];
        x[i] = energies[i].sqrt();
        x
    };
    (0..size).map(along).collect()
}

fn refs(vectors: &[Vec<f32>]) -> Vec<&[f32]> {
    vectors.iter().map(|x| &x[..]).collect()
}

#[test]
fn a_step_in_the_plane_is_that_of_the_formula() {
    // tan' = tan (1 + h (λ2 - m)) / (1 + h (λ1 - m)) with m = λ1 cos² + λ2 sin², h = η / m.
    let (l1, l2) = (9.0_f64, 4.0);
    let vectors = axes(&[9.0, 4.0]);
    let mut angle = 1.2_f64;
    let mut u = vec![angle.cos() as f32, angle.sin() as f32];
    for rate in [0.1, 0.5, 1.0, 0.02] {
        let m = l1 * angle.cos().powi(2) + l2 * angle.sin().powi(2);
        let h = rate / m;
        let tangent = angle.tan() * (1.0 + h * (l2 - m)) / (1.0 + h * (l1 - m));
        angle = tangent.atan();
        u = oja::oja_step(&u, 2, &refs(&vectors), rate);
        assert!(
            (f64::from(u[1] / u[0]) - tangent).abs() < 1e-5,
            "{u:?} {tangent}"
        );
        assert!((u[0] * u[0] + u[1] * u[1] - 1.0).abs() < 1e-6);
    }
}

#[test]
fn steps_converge_to_the_top_subspace_at_the_rate_of_the_gap() {
    let energies = [30.0, 20.0, 16.0, 6.0, 1.0, 1.0, 0.5, 0.5];
    let (size, rank, rate) = (8, 3, 0.4);
    let vectors = axes(&energies);
    let top: Vec<f32> = (0..rank * size)
        .map(|i| f32::from(u8::from(i % (size + 1) == 0)))
        .collect();
    // Asymptotically every step takes η r (λ_3 - λ_4) / (λ_1 + λ_2 + λ_3) off the slowest part of
    // the distance.
    let expected = 1.0 - rate * 3.0 * (16.0 - 6.0) / (30.0 + 20.0 + 16.0);
    let mut slowest = 0.0_f64;
    for seed in 0..6 {
        let mut random = Random(seed);
        let mut u = basis(&mut random, rank, size);
        let mut distances = vec![oja::projection_distance(&u, &top, size)];
        assert!(distances[0] > 0.5 && oja::subspace_overlap(&u, &top, size) < 0.95);
        for _ in 0..80 {
            u = oja::oja_step(&u, size, &refs(&vectors), rate);
            distances.push(oja::projection_distance(&u, &top, size));
        }
        let found = (distances[40] / distances[30]).powf(0.1);
        assert!(found < expected + 2e-3, "{found} for {expected}");
        slowest = slowest.max(found);
        assert!(distances[80] < 1e-5, "{distances:?}");
        assert!((oja::subspace_overlap(&u, &top, size) - 1.0).abs() < 1e-6);
    }
    assert!(
        (slowest - expected).abs() < 2e-3,
        "{slowest} for {expected}"
    );
}

#[test]
fn step_is_invariant_to_scale_and_count_and_cannot_diverge() {
    let mut random = Random(10);
    let (size, rank) = (16, 5);
    let u = basis(&mut random, rank, size);
    let vectors: Vec<_> = (0..20).map(|_| random.numbers(size)).collect();
    let once = oja::oja_step(&u, size, &refs(&vectors), 0.3);
    let larger: Vec<Vec<f32>> = vectors
        .iter()
        .map(|x| x.iter().map(|x| x * 4096.0).collect())
        .collect();
    let twice = [vectors.clone(), vectors.clone()].concat();
    for again in [&larger, &twice] {
        let found = oja::oja_step(&u, size, &refs(again), 0.3);
        let difference = found.iter().zip(&once).map(|(a, b)| (a - b).abs());
        assert!(difference.fold(0.0, f32::max) < 1e-6);
    }
    let turn = oja::transition(&once, &u, size);
    for i in 0..rank {
        for j in 0..rank {
            let (a, b) = (&once[i * size..][..size], &once[j * size..][..size]);
            let product: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            let expected = f32::from(u8::from(i == j));
            assert!((product - expected).abs() < 1e-6, "{product}");
            assert!(i == j || turn[i * rank + j].abs() < turn[i * rank + i]);
        }
    }
    for scale in [1e-15_f32, 1.0, 60_000.0] {
        let x: Vec<f32> = vectors[0].iter().map(|x| x * scale).collect();
        let next = oja::oja_step(&u, size, &[&x], 1.0);
        let before = oja::projection_distance(&next, &u, size);
        assert!(next.iter().all(|x| x.is_finite()) && before > 0.1);
        let again = oja::oja_step(&next, size, &[&x], 1.0);
        assert!(oja::projection_distance(&again, &next, size) < 1e-5);
    }
    let held = |u: &[f32]| -> f64 {
        let coordinates = vectors.iter().flat_map(|x| {
            let product = |u: &[f32]| -> f32 { u.iter().zip(x).map(|(a, b)| a * b).sum() };
            u.chunks_exact(size).map(product).collect::<Vec<_>>()
        });
        coordinates.map(|y| f64::from(y).powi(2)).sum()
    };
    let mut next = u.clone();
    for _ in 0..100 {
        let before = held(&next);
        next = oja::oja_step(&next, size, &refs(&vectors), 1.0);
        assert!(held(&next) > before * (1.0 - 1e-6));
    }
    let gram: Vec<f64> = (0..size * size)
        .map(|i| {
            let products = vectors.iter().map(|x| f64::from(x[i / size] * x[i % size]));
            products.sum()
        })
        .collect();
    let (_, energies) = eigen(&gram, size);
    let most: f64 = energies[..rank].iter().map(|&e| f64::from(e)).sum();
    assert!(held(&next) > 0.999 * most, "{} of {most}", held(&next));
    assert_eq!(oja::oja_step(&u, size, &[], 1.0), u);
    assert_eq!(oja::oja_step(&u, size, &[&vec![0.0; size]], 1.0), u);
    let inside: Vec<f32> = u[..size].iter().map(|x| 3.0 * x).collect();
    let next = oja::oja_step(&u, size, &[&inside], 1.0);
    assert!(oja::projection_distance(&next, &u, size) < 1e-3);
}

#[test]
fn coordinates_are_turned_with_their_basis() {
    let mut random = Random(11);
    let size = 8;
    let all = basis(&mut random, size, size);
    let row = |i: usize| &all[i * size..(i + 1) * size];
    let old: Vec<f32> = [0, 1, 2, 3].map(row).concat();
    let (c, s) = (0.6, 0.8);
    let mixed = |a: &[f32], b: &[f32]| -> [Vec<f32>; 2] {
        let turned = |c: f32, s: f32| a.iter().zip(b).map(|(a, b)| c * a + s * b).collect();
        [turned(c, s), turned(-s, c)]
    };
    let [first, second] = mixed(row(0), row(1));
    let new = [&first[..], &second, row(2), row(5)].concat();
    let shape = KvShape {
        layers: 1,
        kv_heads: 1,
        head_size: size,
    };
    let layer = |components: &[f32]| {
        Arc::new(LayerBases {
            kv_heads: 1,
            head_size: size,
            ranks: [4; 2],
            components: [components.to_vec(), components.to_vec()],
        })
    };
    let sides = random_bases(&mut random, shape);
    let mut options = KvOptions::new("static:0.5".parse::<KvKind>().unwrap());
    options.exempt_start = 0;
    let plan = KvPlan::new(shape, &options, Some(&sides)).unwrap();
    let attended = |turns: Option<&[Vec<f32>; 2]>, bases: &[f32]| {
        let mut random = Random(12);
        let mut cpu = Cpu::with_threads(1).unwrap();
        let mut kv = cpu.kv(&plan).unwrap();
        kv.set_bases(&mut cpu, 0, &layer(&old), None).unwrap();
        let mut rows = vec![vec![], vec![]];
        for _ in 0..40 {
            for rows in &mut rows {
                let weights = random.numbers(3);
                rows.extend(
                    (0..size).map(|d| (0..3).map(|i| 4.0 * weights[i] * row(i)[d]).sum::<f32>()),
                );
            }
        }
        kv.reserve(&mut cpu, 40).unwrap();
        kv.append(&mut cpu, 0, 0..40, &rows[0], &rows[1]).unwrap();
        kv.advance(40);
        let energies = kv.compress(&mut cpu, 0, 0, 39).unwrap();
        kv.layout_mut().compress(0, 0, 39);
        assert!(energies.residual[0] < 1e-4 * energies.before[0]);
        if bases != old {
            kv.set_bases(&mut cpu, 0, &layer(bases), turns).unwrap();
        }
        let shape = crate::backend::HeadShape {
            rows: 1,
            heads: 1,
            size,
        };
        let attention = crate::backend::Attention {
            scale: 0.35,
            softcap: None,
            window: None,
        };
        let (q, mut out) = (random.numbers(size), vec![0.0; size]);
        kv.reserve(&mut cpu, 1).unwrap();
        let last = [&rows[0][..size], &rows[1][..size]].map(<[f32]>::to_vec);
        kv.append(&mut cpu, 0, 0..1, &last[0], &last[1]).unwrap();
        let own = crate::backend::SequenceRows {
            rows: 0..1,
            kv: &kv,
        };
        cpu.attention(shape, &q, &[own], 0, &attention, &mut out)
            .unwrap();
        out
    };
    let turn = oja::transition(&new, &old, size);
    let turns = [turn.clone(), turn];
    let before = attended(None, &old);
    let turned = difference(&attended(Some(&turns), &new), &before);
    let forgotten = difference(&attended(None, &new), &before);
    assert!(turned < 3e-3, "{turned}");
    assert!(forgotten > 0.3, "{forgotten}");
}
