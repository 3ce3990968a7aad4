use super::*;

#[test]
fn solver_codes_have_description_and_name() {
    assert_eq!(
        solver_error_description(cusolverStatus_t::CUSOLVER_STATUS_ALLOC_FAILED),
        "not enough memory for the library (CUSOLVER_STATUS_ALLOC_FAILED)"
    );
    assert_eq!(
        solver_error_description(cusolverStatus_t::CUSOLVER_STATUS_ZERO_PIVOT),
        "CUSOLVER_STATUS_ZERO_PIVOT"
    );
}
