//! Checks every backend against the float64 oracle: every operation, and whole models.
//!
//! Each operation has its own tolerance. To add a backend, add a line to [`suite`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of this crate is test code"
)]

#[cfg(all(feature = "cuda", feature = "emulated", unix))]
mod driver;
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

/// The first NVIDIA GPU. Its tests are ignored by default instead of skipped silently.
#[cfg(feature = "cuda")]
fn cuda() -> Vec<Named<Cuda>> {
    let device = htc_loader::device::open_cuda(htc_loader::device::Which::default(), None).unwrap();
    vec![(format!("cuda, {}", device.code()), Gpu::new(&device))]
}

/// Defines the tests of each backend with an optional attribute; `in_short` omits those with long
/// texts.
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
            numbers_come_back_as_they_went_in, embedding, norms, biases_and_sums, activations,
            rotations, attention, keys_beyond_their_type_are_refused_with_their_layer
        });
        suite!(@tests $attribute $backend: neighbours::{neighbours_are_what_they_are_alone});
        suite!(@tests $attribute $backend: products::{projections, logits});
        suite!(@tests $attribute $backend: models::{architectures, demo, factorised, coded});
        suite!(@tests $attribute $backend: sessions::{
            step_equals_forward_and_logits, the_rest_of_a_pass_is_that_of_the_whole,
            the_head_reads_what_its_logits_are_of, blocks_know_only_what_they_read,
            generator_and_generate_give_the_same_text, what_cannot_be_read_leaves_all_as_it_was,
            a_key_without_a_place_leaves_all_as_it_was, what_a_sampler_wants_is_enough
        });
        suite!(@tests $attribute $backend: live::{
            a_session_follows_between_two_tokens, full_context_slides
        });
        suite!(@tests $attribute $backend: learning::{what_is_learnt_is_what_the_oracle_learns});
        suite!(@tests $attribute $backend: speculation::{
            drafts_change_no_token, a_draft_follows_where_its_session_goes,
            drafts_that_do_not_fit_are_refused, what_is_not_asked_for_changes_no_bit
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
        is_shared::<htc_loader::Model<B>>();
    }
    of::<Cpu>();
    of::<Reference>();
    #[cfg(feature = "emulated")]
    of::<Emulated>();
    #[cfg(feature = "cuda")]
    of::<Cuda>();
}
