//! Every kind on a GPU, real or emulated, compared with float64.

use htc_kernels::cuda::Device;

use super::sessions::Fixture;
use super::*;
#[cfg(feature = "emulated")]
use crate::backend::EmulatedDevice;
use crate::backend::{Gpu, Reference};

fn read<B: Backend>(session: &mut Session<B>, tokens: &[u32], prompt: usize) -> Vec<Vec<f32>> {
    session.read_prompt(&tokens[..prompt]).unwrap();
    let mut found = vec![session.last_logits().unwrap().to_vec()];
    for token in &tokens[prompt..] {
        found.push(session.step(&[*token]).unwrap().to_vec());
    }
    found
}

#[cfg(feature = "emulated")]
#[test]
fn an_emulated_gpu_and_the_oracle_agree_on_every_kind() {
    agrees_on_every_kind(&EmulatedDevice::new(5));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA GPU: make test-cuda"]
fn cuda_and_the_oracle_agree_on_every_kind() {
    agrees_on_every_kind(&crate::device::open_cuda(Default::default(), None).unwrap());
}

fn agrees_on_every_kind<D: Device>(device: &D) {
    let bench = Fixture::new();
    let model = load(&mut Gpu::new(device));
    let reference = load(&mut Reference);
    for (kind, keep, reconstruct, bound) in [
        ("f32", None, false, 1e-2),
        ("f16", Some(30), false, 2e-2),
        ("q8_0", None, false, 5e-2),
        ("q8_0-rotated", Some(30), false, 5e-2),
        ("q4_0", None, false, 0.3),
        ("q4_0-rotated", None, false, 0.3),
        ("static:0.5", Some(30), false, 2e-2),
        ("static-hybrid:0.5", None, false, 2e-2),
        ("static-hybrid:0.5", None, true, 2e-2),
        ("oja:0.5", None, false, 5e-2),
        ("oja:0.5", Some(30), true, 5e-2),
    ] {
        let mut options = KvOptions::new(kind.parse::<KvKind>().unwrap());
        (
            options.exempt_start,
            options.exempt_recent,
            options.importance_window,
        ) = (4, 8, 8);
        (options.oja.period, options.max_prompt_positions) = (8, keep);
        (options.max_pass_positions, options.reconstruct) = (Some(32), reconstruct);
        let bases = || Some(Arc::clone(&bench.bases));
        let oracle = Session::with_kv(Arc::clone(&reference), Reference, 512, &options, bases());
        let backend = Gpu::new(device);
        let found = Session::with_kv(Arc::clone(&model), backend, 512, &options, bases());
        let (mut expected, mut found) = (oracle.unwrap(), found.unwrap());
        let tokens = &bench.tokens[..46];
        let all = read(&mut found, tokens, 34);
        let expected_all = read(&mut expected, tokens, 34);
        for (index, (a, b)) in all.iter().zip(&expected_all).enumerate() {
            let difference = difference(a, b);
            assert!(
                difference < bound,
                "{kind}, keep {keep:?}, logits {index}: {difference:.2e}"
            );
        }
        assert_eq!(found.kv().layout(), expected.kv().layout());
        assert_eq!(found.kv_counters().updates, expected.kv_counters().updates);
    }
}

#[cfg(feature = "emulated")]
#[test]
fn verification_on_an_emulated_gpu_is_bit_identical_to_steps() {
    check_verification_is_bit_identical(&EmulatedDevice::new(6));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA GPU: make test-cuda"]
fn verification_on_cuda_is_bit_identical_to_steps() {
    check_verification_is_bit_identical(
        &crate::device::open_cuda(Default::default(), None).unwrap(),
    );
}

fn check_verification_is_bit_identical<D: Device>(device: &D) {
    let model = load(&mut Gpu::new(device));
    // Across the end of a chunk of the context, and within one.
    for (kind, read) in [("f16", 253), ("q8_0-rotated", 30), ("f16", 34)] {
        let tokens = tokens(read + 5);
        let options = KvOptions::new(kind.parse::<KvKind>().unwrap());
        let (model, backend) = (Arc::clone(&model), Gpu::new(device));
        let mut session = Session::with_kv(model, backend, 512, &options, None).unwrap();
        session.read_prompt(&tokens[..read]).unwrap();
        let found = session.verify(&tokens[read..], &mut ()).unwrap().to_vec();
        session.truncate(read).unwrap();
        let rows = found.chunks_exact(found.len() / 5);
        for (token, found) in tokens[read..].iter().zip(rows) {
            assert_eq!(session.step(&[*token]).unwrap(), found, "{kind}");
        }
    }
}
