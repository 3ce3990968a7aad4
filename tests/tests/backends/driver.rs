//! Runs the GPU suite through the driver API on a simulated device.

use htc_tests::machine::FakeGpuMachine;

/// All of it would take minutes on the single thread.
const PART: &[&str] = &[
    "drafts_stay_in_sync_with_their_session",
    "key_out_of_range_rolls_back",
    "sessions_follow_the_fraction_between_tokens",
    "activations",
    "architectures",
    "attention",
    "biases_and_sums",
    "layers_track_their_own_positions",
    "coded",
    "incompatible_drafts_are_refused",
    "embedding",
    "keys_out_of_range_are_refused_with_their_layer",
    "logits",
    "sequences_equal_single_operations",
    "norms",
    "buffers_round_trip",
    "rotations",
    "head_input_gives_the_logits",
    "forward_from_a_layer_equals_the_whole_pass",
    "requested_logits_suffice_for_sampling",
    "refused_tokens_leave_the_session_unchanged",
    "drafts_learn_the_same_as_on_the_oracle",
    "unused_drafts_change_no_bit",
];

#[test]
fn gpu_suite_passes_on_a_simulated_driver() {
    let machine = FakeGpuMachine::new();
    let names = PART.iter().map(|name| format!("on::cuda::{name}"));
    let run = machine
        .program(&std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--test-threads=1"])
        .args(names)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}");
    let passed = format!("test result: ok. {} passed", PART.len());
    assert!(said.contains(&passed), "{said}");
    let called = machine.call_log();
    for asked in ["launch a graph of", "change a node", "load cubin"] {
        assert!(called.contains(asked), "{asked}");
    }
    machine.assert_last_device_released();
}
