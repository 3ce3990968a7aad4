//! Attention on coordinates, compared with reconstructed keys and values.

use htc_kernels::cpu::{Cpu as Kernels, KvView, Scratch};
use htc_kernels::reference;

use super::sessions::{Fixture, options};
use super::*;
use crate::Pool;

const KINDS: [&str; 4] = [
    "static:0.5",
    "static-hybrid:0.5",
    "oja:0.5",
    "static:0.28125",
];

const PROMPT: usize = 400;
const SECOND_PASS: usize = 40;

/// `Σ p U_v ṽ` and `qᵀ U_k k̃` are computed as `U_v Σ p ṽ` and `(U_kᵀ q)ᵀ k̃`, or row by row: only
/// the order of sums differs.
const ATTENTION: f64 = 2e-6;

/// Tolerance of logits relative to the largest: of a single step, and of a pass, whose own keys and
/// values are rounded to float16 after those sums.
const STEP: f64 = 2e-6;
const PASS: f64 = 1e-4;

struct Queries(Vec<Vec<f32>>);

impl Tap for Queries {
    fn observes(&self, point: Point) -> bool {
        point == Point::Queries
    }

    fn see(&mut self, layer: usize, _: Point, x: &[f32]) {
        self.0[layer] = x.to_vec();
    }
}

fn compressed(bench: &Fixture, kind: &str, reconstruct: bool) -> Session {
    let mut options = options(kind);
    options.reconstruct = reconstruct;
    let mut session = bench.session(&options, 2);
    assert_eq!(session.next_pass(PROMPT), PROMPT);
    session.read_prompt(&bench.tokens[..PROMPT]).unwrap();
    assert!(session.kv().low_rank_rows() > 0, "{kind}");
    session
}

fn held(session: &Session, layer: usize) -> [Vec<f32>; 2] {
    let kernels = Kernels::with_threads(1).unwrap();
    let kv = session.kv();
    let positions = kv.layout().positions(layer);
    kernels
        .reconstruct(&kv.view(layer).unwrap(), positions)
        .unwrap()
}

fn apart(found: &[f32], expected: &[f32]) -> f64 {
    let largest =
        |numbers: &mut dyn Iterator<Item = f32>| numbers.fold(0.0_f32, |a, b| a.max(b.abs()));
    let differences = &mut found.iter().zip(expected).map(|(a, b)| a - b);
    f64::from(largest(differences)) / f64::from(largest(&mut expected.iter().copied()))
}

#[test]
fn attention_on_coordinates_equals_attention_on_reconstructed_rows() {
    let bench = Fixture::new();
    let pool = Arc::new(Pool::new(2).unwrap());
    let mut scratch = Scratch::new();
    for kind in KINDS {
        let mut session = compressed(&bench, kind, false);
        let layers = session.model().hyper().layers;
        let mut queries = Queries(vec![Vec::new(); layers]);
        let next = &bench.tokens[PROMPT..][..1];
        session.forward_with(next, &mut queries).unwrap();
        for (layer, q) in queries.0.iter().enumerate() {
            let kv = session.kv().view(layer).unwrap();
            let positions = session.kv().layout().positions(layer);
            let attention = session.model().attention(layer).unwrap();
            let mut expected = vec![0.0; q.len()];
            reference::attention(q, 1, positions - 1, &kv, attention, &mut expected).unwrap();
            for cpu in Kernels::each(&pool) {
                let [keys, values] = cpu.reconstruct(&kv, positions).unwrap();
                let (heads, size) = (kv.kv_heads(), kv.head_size());
                let whole = KvView::new(&keys[..], &values, heads, size, positions).unwrap();
                let found = [&kv, &whole].map(|kv| {
                    let mut out = vec![0.0; q.len()];
                    let scratch = &mut scratch;
                    cpu.attention_decode(q, kv, positions, attention, scratch, &mut out)
                        .unwrap();
                    out
                });
                for (found, way) in found.iter().zip(["coordinates", "reconstructed"]) {
                    let apart = apart(found, &expected);
                    let label = format!("{kind}, layer {layer}, {way}, {}", cpu.instruction_set());
                    assert!(apart < ATTENTION, "{label}: {apart:.2e}");
                }
            }
        }
    }
}

#[test]
fn logits_are_the_same_either_way() {
    let bench = Fixture::new();
    let vocabulary = bench.model.hyper().vocabulary;
    for kind in KINDS {
        let mut both = [false, true].map(|reconstruct| compressed(&bench, kind, reconstruct));
        for layer in 0..bench.model.hyper().layers {
            let [late, first] = both.each_ref().map(|session| held(session, layer));
            assert_eq!(late, first, "{kind}, layer {layer}");
        }
        for (count, bound) in [(1, STEP), (SECOND_PASS, PASS)] {
            let [late, first] = both.each_mut().map(|session| {
                session.truncate(PROMPT).unwrap();
                session.forward(&bench.tokens[PROMPT..][..count]).unwrap();
                session.logits(0, count).unwrap().to_vec()
            });
            let rows = late
                .chunks_exact(vocabulary)
                .zip(first.chunks_exact(vocabulary));
            for (row, (late, first)) in rows.enumerate() {
                let apart = apart(late, first);
                assert!(apart < bound, "{kind}, row {row} of {count}: {apart:.2e}");
            }
            assert!(late != first, "{kind}: nothing was computed another way");
        }
    }
}
