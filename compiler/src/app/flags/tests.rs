use super::*;

#[test]
fn methods_become_options() {
    for (message, typed) in [
        (
            "`rank_cap` 4: more than `rank_floor`",
            "--rank-cap 4: more than --rank-floor",
        ),
        (
            "give another `output`, or `overwrite`",
            "give another -o, or --force",
        ),
        (
            "at most that, `full`, or fewer `projections`",
            "at most that, `full`, or fewer --projections",
        ),
        ("a file ` of mine: `threads`", "a file ` of mine: --threads"),
        ("`rank-cap`, `rank", "`rank-cap`, `rank"),
        ("``", "``"),
        ("no option", "no option"),
    ] {
        assert_eq!(with_option_names(message), typed);
    }
}
