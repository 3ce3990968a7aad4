//! Lists the usable GPUs; fails with a reason if there are none.

fn main() -> std::process::ExitCode {
    match found() {
        Ok(found) => {
            println!("{found}");
            std::process::ExitCode::SUCCESS
        }
        Err(why) => {
            println!("{why}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "cuda")]
fn found() -> Result<String, String> {
    use htc_kernels::cuda::Cuda;
    use htc_kernels::cuda::driver::LEAST;

    let all = Cuda::devices().map_err(|error| error.to_string())?;
    let line = |found: &htc_kernels::cuda::driver::Found| {
        let (index, name) = (found.index, &found.name);
        format!(
            "{index}: {name}, {}, {}",
            found.architecture,
            found.identifier()
        )
    };
    let lines: Vec<String> = all.iter().map(line).collect();
    if all.iter().any(|found| found.architecture >= LEAST) {
        Ok(lines.join("\n"))
    } else {
        Err(format!(
            "kernels need {LEAST}, there are {}",
            lines.join("; ")
        ))
    }
}

#[cfg(not(feature = "cuda"))]
fn found() -> Result<String, String> {
    Err("this build has no feature cuda".to_owned())
}
