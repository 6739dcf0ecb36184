//! Compiles the CUDA kernels where the feature `cuda` asks for them: `nvcc` from `$CUDA_HOME/bin` or the search path, the
//! architectures from `MYNA_CUDA_ARCHS` ("80,90", all that people have by default).

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

const ARCHITECTURES: &str = "80,86,89,90,120";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let kernels = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("cuda/kernels");
    println!("cargo:rerun-if-changed={}", kernels.display());
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    println!("cargo:rerun-if-env-changed=MYNA_CUDA_ARCHS");
    let nvcc =
        env::var_os("CUDA_HOME").map_or_else(|| PathBuf::from("nvcc"), |home| PathBuf::from(home).join("bin/nvcc"));
    let architectures = env::var("MYNA_CUDA_ARCHS").unwrap_or_else(|_| ARCHITECTURES.to_owned());
    for name in ["t3", "s3gen"] {
        let mut command = Command::new(&nvcc);
        command.args(["-O3", "-std=c++17", "-fatbin", "-Xfatbin=-compress-all", "--threads=2"]);
        let mut newest = "";
        for arch in architectures.split(',').map(str::trim) {
            command.arg(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
            newest = arch;
        }
        // For cards that do not exist yet, the driver compiles this when the program starts.
        command.arg(format!("-gencode=arch=compute_{newest},code=compute_{newest}"));
        command.arg("-o").arg(PathBuf::from(env::var("OUT_DIR")?).join(format!("{name}.fatbin")));
        let done = command.arg(kernels.join(format!("{name}.cu"))).status().map_err(|e| {
            format!(
                "the feature `cuda` needs NVIDIA's compiler, and {} cannot be run ({e}): see packaging/linux/cuda.sh",
                nvcc.display()
            )
        })?;
        if !done.success() {
            return Err(format!("{} failed", nvcc.display()).into());
        }
    }
    Ok(())
}
