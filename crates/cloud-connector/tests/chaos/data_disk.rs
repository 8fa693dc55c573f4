//! A small file system for the data folder of embedded mode, which the test can fill.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Size of the file system. It is much larger than the database of a long run.
const SIZE: &str = "256m";

/// A file system in memory. It is unmounted when the value is dropped.
pub struct DataDisk {
    mount_point: PathBuf,
}

impl DataDisk {
    /// Mounts an empty file system at `mount_point`, and creates the folder.
    pub fn mount(mount_point: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(mount_point).map_err(|error| error.to_string())?;
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={SIZE}"), "tmpfs"])
            .arg(mount_point)
            .status()
            .map_err(|error| format!("mount: {error}"))?;
        if !status.success() {
            return Err(format!("cannot mount a tmpfs: {status}"));
        }
        Ok(Self {
            mount_point: mount_point.to_owned(),
        })
    }

    /// Fills the file system until the returned value is dropped.
    pub fn fill(&self) -> Result<FillerFile, String> {
        let path = self.mount_point.join("filler");
        let mut file = std::fs::File::create(&path).map_err(|error| error.to_string())?;
        let filler = FillerFile { path };
        // The last bytes are written one block at a time, so no space is left.
        for block in [vec![0; 1024 * 1024], vec![0; 4096]] {
            loop {
                match file.write_all(&block) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        Ok(filler)
    }
}

impl Drop for DataDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(&self.mount_point)
            .status();
    }
}

/// A file that fills the file system. Dropping the value deletes the file.
pub struct FillerFile {
    path: PathBuf,
}

impl Drop for FillerFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            println!("chaos: cannot delete {}: {error}", self.path.display());
        }
    }
}
