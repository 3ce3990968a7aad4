//! Checks every backend against the float64 oracle: every operation, and whole models.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of this crate is test code"
)]

#[cfg(all(feature = "cuda", feature = "emulated", unix))]
mod driver;
mod engine;
#[cfg(feature = "emulated")]
mod launches;
mod learning;
mod live;
mod models;
mod neighbours;
mod operations;
mod products;
mod sessions;
mod speculation;

use std::sync::Arc;

#[cfg(feature = "cuda")]
use htc_loader::backend::Cuda;
#[cfg(feature = "emulated")]
use htc_loader::backend::Emulated;
#[cfg(any(feature = "cuda", feature = "emulated"))]
use htc_loader::backend::Gpu;
use htc_loader::backend::Reference;
use htc_loader::{Backend, Cpu, Pool};

type Named<B> = (String, B);

fn cpu() -> Vec<Named<Cpu>> {
    let pools = [1, 3].map(|threads| Arc::new(Pool::new(threads).unwrap()));
    let named = |cpu: Cpu, pool: &Pool| {
        let threads = pool.threads();
        (format!("{}, {threads} threads", cpu.instruction_set()), cpu)
    };
    let of = |pool: &Arc<Pool>| {
        let each = Cpu::each(pool).into_iter();
        each.map(|cpu| named(cpu, pool)).collect::<Vec<_>>()
    };
    pools.iter().flat_map(of).collect()
}

fn reference() -> Vec<Named<Reference>> {
    vec![("reference".into(), Reference)]
}

#[cfg(feature = "emulated")]
fn emulated() -> Vec<Named<Emulated>> {
    let device = htc_loader::backend::EmulatedDevice::new(1);
    vec![("emulated".into(), Gpu::new(&device))]
}

/// Ignored by default instead of skipped silently.
#[cfg(feature = "cuda")]
fn cuda() -> Vec<Named<Cuda>> {
    let device =
        htc_loader::device::open_cuda(htc_loader::device::DeviceSelector::default(), None).unwrap();
    vec![(format!("cuda, {}", device.code_origin()), Gpu::new(&device))]
}

/// `in_short` omits tests with long texts.
macro_rules! suite {
    ($($(#[$attribute:meta])? $backend:ident;)*) => {
        $(
            suite!(@whole $backend [$(#[$attribute])?]);
        )*
    };
    (in_short $backend:ident) => {
        mod $backend {
            use super::super::*;
            suite!(@common [] $backend);
        }
    };
    (@whole $backend:ident $attribute:tt) => {
        mod $backend {
            use super::super::*;
            suite!(@common $attribute $backend);
            suite!(@tests $attribute $backend: sessions::{truncated_tokens_leave_no_trace});
            suite!(@tests $attribute $backend: speculation::{
                drafts_preserve_the_sampling_distribution
            });
        }
    };
    (@common $attribute:tt $backend:ident) => {
        suite!(@tests $attribute $backend: operations::{
            buffers_round_trip, embedding, norms, biases_and_sums, activations,
            rotations, attention, keys_out_of_range_are_refused_with_their_layer
        });
        suite!(@tests $attribute $backend: neighbours::{sequences_equal_single_operations});
        suite!(@tests $attribute $backend: products::{projections, logits});
        suite!(@tests $attribute $backend: models::{
            architectures, demo, experts, factorised, coded
        });
        suite!(@tests $attribute $backend: sessions::{
            step_equals_forward_and_logits, forward_from_a_layer_equals_the_whole_pass,
            head_input_gives_the_logits, layers_track_their_own_positions,
            generator_and_generate_give_the_same_text, refused_tokens_leave_the_session_unchanged,
            key_out_of_range_rolls_back, requested_logits_suffice_for_sampling
        });
        suite!(@tests $attribute $backend: engine::{
            texts_together_equal_texts_alone, coming_and_going_sequences_change_no_bit,
            copies_and_cuts_leave_no_trace, evictions_depend_on_their_own_text,
            refused_chunks_leave_sequences_unchanged, key_out_of_range_undoes_the_pass
        });
        suite!(@tests $attribute $backend: live::{
            sessions_follow_the_fraction_between_tokens, full_context_slides
        });
        suite!(@tests $attribute $backend: learning::{drafts_learn_the_same_as_on_the_oracle});
        suite!(@tests $attribute $backend: speculation::{
            drafts_change_no_token, drafts_stay_in_sync_with_their_session,
            incompatible_drafts_are_refused, unused_drafts_change_no_bit
        });
    };
    (@tests $attribute:tt $backend:ident: $module:ident::{$($test:ident),*}) => {
        $(
            suite!(@test $attribute $backend $module $test);
        )*
    };
    (@test [$($attribute:tt)*] $backend:ident $module:ident $test:ident) => {
        #[test]
        $($attribute)*
        fn $test() {
            $module::$test($backend);
        }
    };
}

mod on {
    suite! {
        cpu;
        reference;
    }
    #[cfg(feature = "emulated")]
    suite! { in_short emulated }
    #[cfg(feature = "cuda")]
    suite! {
        #[ignore = "needs an NVIDIA GPU: make test-cuda"]
        cuda;
    }
}

#[test]
fn sessions_are_send_and_models_are_sync() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    fn of<B: Backend>() {
        moves::<htc_loader::Session<B>>();
        moves::<htc_loader::Engine<B>>();
        is_shared::<htc_loader::Model<B>>();
    }
    of::<Cpu>();
    of::<Reference>();
    #[cfg(feature = "emulated")]
    of::<Emulated>();
    #[cfg(feature = "cuda")]
    of::<Cuda>();
}
