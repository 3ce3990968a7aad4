//! Runs the GPU suite through the driver API on a simulated device.

use htc_tests::machine::Machine;

/// Part of the suite: operations, models, sessions, a draft. All of it would take minutes on the
/// single thread.
const PART: &[&str] = &[
    "a_draft_follows_where_its_session_goes",
    "a_key_without_a_place_leaves_all_as_it_was",
    "a_session_follows_between_two_tokens",
    "activations",
    "architectures",
    "attention",
    "biases_and_sums",
    "blocks_know_only_what_they_read",
    "coded",
    "drafts_that_do_not_fit_are_refused",
    "embedding",
    "keys_beyond_their_type_are_refused_with_their_layer",
    "logits",
    "neighbours_are_what_they_are_alone",
    "norms",
    "numbers_come_back_as_they_went_in",
    "rotations",
    "the_head_reads_what_its_logits_are_of",
    "the_rest_of_a_pass_is_that_of_the_whole",
    "what_a_sampler_wants_is_enough",
    "what_cannot_be_read_leaves_all_as_it_was",
    "what_is_learnt_is_what_the_oracle_learns",
    "what_is_not_asked_for_changes_no_bit",
];

#[test]
fn gpu_suite_passes_on_a_simulated_driver() {
    let machine = Machine::new();
    let names = PART.iter().map(|name| format!("on::cuda::{name}"));
    let run = machine
        .program(&std::env::current_exe().unwrap())
        // Devices share state in the driver.
        .args(["--ignored", "--exact", "--test-threads=1"])
        .args(names)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}");
    let passed = format!("test result: ok. {} passed", PART.len());
    assert!(said.contains(&passed), "{said}");
    let called = machine.called();
    for asked in ["launch a graph of", "change a node", "load cubin"] {
        assert!(called.contains(asked), "{asked}");
    }
    machine.nothing_is_left_at_the_end();
}
