//! Sequences of operations, which a backend may fuse.

use htc_formats::model::{Activation, RopePairs};
use htc_loader::Backend;
use htc_loader::backend::HeadShape;
use htc_tests::model::Random;

use super::Named;
use super::operations::{Operation, allocate, assert_agrees, get, numbers, put};

const ROWS: usize = 3;
const WIDTH: usize = 32;
const ALL: usize = ROWS * WIDTH;

struct OperationSequence {
    numbers: Vec<f32>,
}

impl Operation for OperationSequence {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        let part = |i: usize| &self.numbers[i * ALL..(i + 1) * ALL];
        let weight = backend.vector(part(0)[..WIDTH].to_vec()).unwrap();
        let of_head = backend.vector(part(0)[..WIDTH / 2].to_vec()).unwrap();
        let [mut a, mut b, mut c, d] = [1, 2, 3, 4].map(|i| put(backend, part(i)));
        let mut out = allocate(backend, ALL);
        let mut found = Vec::new();
        let mut keep = |backend: &mut B, buffers: &[&B::Buffer]| {
            for buffer in buffers {
                found.extend(get(backend, buffer, ALL));
            }
        };
        backend.add(ALL, &mut a, &d).unwrap();
        backend.rms_norm(ROWS, &b, &weight, 1e-5, &mut out).unwrap();
        keep(backend, &[&a, &out]);
        backend.add(WIDTH, &mut a, &d).unwrap();
        backend.rms_norm(ROWS, &a, &weight, 1e-5, &mut out).unwrap();
        keep(backend, &[&a, &out]);
        backend.add(ALL, &mut a, &d).unwrap();
        backend.rms_norm(1, &a, &weight, 1e-5, &mut out).unwrap();
        keep(backend, &[&a, &out]);
        backend.rms_norm(ROWS, &a, &weight, 1e-5, &mut out).unwrap();
        backend.add(ALL, &mut b, &out).unwrap();
        backend.add(ALL, &mut b, &out).unwrap();
        backend.rms_norm(ROWS, &b, &weight, 1e-5, &mut out).unwrap();
        keep(backend, &[&b, &out]);
        let silu = Activation::Silu;
        backend.activate(silu, ALL, &mut b, &c).unwrap();
        backend.add(ALL, &mut c, &d).unwrap();
        backend.activate(silu, ALL, &mut c, &b).unwrap();
        backend.softcap(ALL, &mut b, 2.0).unwrap();
        keep(backend, &[&b, &c]);
        let shape = |rows, size| HeadShape {
            rows,
            heads: WIDTH / size,
            size,
        };
        let mut rotation = B::Rotation::default();
        let frequencies = [1.0, 0.1, 0.01];
        let positions = 5..5 + ROWS;
        let positions = std::slice::from_ref(&positions);
        let rotated = backend.rotate_to(&mut rotation, positions, &frequencies, 1.0);
        rotated.unwrap();
        let halves = RopePairs::Halves;
        let half = shape(ROWS, WIDTH / 2);
        backend.rope(halves, &rotation, half, &mut a).unwrap();
        backend
            .rms_norm_in_place(2 * ROWS, &mut a, &of_head, 1e-5)
            .unwrap();
        backend.add_bias(ROWS, &mut a, &weight).unwrap();
        backend
            .rms_norm_in_place(ROWS, &mut b, &weight, 1e-5)
            .unwrap();
        backend.rope(halves, &rotation, half, &mut b).unwrap();
        backend
            .rope(halves, &rotation, shape(1, WIDTH), &mut c)
            .unwrap();
        backend.add_bias(1, &mut c, &weight).unwrap();
        backend.add_bias(ROWS, &mut c, &weight).unwrap();
        keep(backend, &[&a, &b, &c]);
        found
    }

    /// A few roundings, each propagated by the next operations.
    fn bounds(&self, expected: &[f32]) -> Vec<f64> {
        expected
            .iter()
            .map(|x| 2e-5 * f64::from(x.abs().max(1.0)))
            .collect()
    }

    fn name(&self) -> String {
        "neighbours".to_owned()
    }
}

pub fn sequences_equal_single_operations<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let mut random = Random::new(11);
    let numbers = numbers(&mut random, 5 * ALL);
    assert_agrees(&mut backends(), &OperationSequence { numbers });
}
