use std::sync::Mutex;

use super::*;

#[test]
fn cancellation_of_a_clone_ends_the_work_at_the_next_step() {
    let (cancel, said) = (CancellationToken::default(), Mutex::new(Vec::new()));
    let tell = |event: Event| said.lock().unwrap().push(format!("{event:?}"));
    let watch = Progress::new(&tell, &cancel);
    assert_eq!(watch.step_done("one"), Ok(()));
    cancel.clone().cancel();
    assert_eq!(watch.step_done("two"), Err(Cancelled));
    assert_eq!(watch.with_sink(&|_| {}).check_cancelled(), Err(Cancelled));
    assert_eq!(Progress::silent().check_cancelled(), Ok(()));
    assert_eq!(*said.lock().unwrap(), ["Done(\"one\")", "Done(\"two\")"]);
}
