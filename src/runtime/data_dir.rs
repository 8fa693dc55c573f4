//! The data folder: made when missing, locked while in use, holder of the local key.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use uuid::Uuid;

use crate::config::Secret;

/// The caller that the key in the data folder is for.
pub const LOCAL_CALLER: &str = "local";

const DATABASE: &str = "cloud-connector.db";
const KEY_FILE: &str = "local.key";
const LOCK_FILE: &str = "lock";

/// Where the database of a data folder is.
#[must_use]
pub fn database_path(dir: &Path) -> PathBuf {
    dir.join(DATABASE)
}

/// A data folder that is ours until this is dropped.
pub struct DataDir {
    path: PathBuf,
    /// The kernel lets go of it when the process ends, however it ends.
    _lock: File,
}

impl DataDir {
    /// Makes the folder if it is not there, and locks it.
    ///
    /// # Errors
    /// When it cannot be written to, or another process has it.
    pub fn open(dir: &Path) -> Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.with_context(|| unwritable("make", dir))?;
        let path = dir.canonicalize().with_context(|| unwritable("use", dir))?;
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(path.join(LOCK_FILE))
            .with_context(|| unwritable("write to", dir))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "data.dir: {} is in use by another cloud-connector{}; stop it, or choose another folder with --data-dir",
                dir.display(),
                holder(&mut lock)
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| unwritable("lock", dir));
            }
        }
        lock.set_len(0)?;
        writeln!(lock, "{}", std::process::id()).with_context(|| unwritable("write to", dir))?;
        Ok(Self { path, _lock: lock })
    }

    /// The folder, as an absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The database file.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        database_path(&self.path)
    }

    /// The key of the caller `local`: the one that is kept, or a new random one.
    ///
    /// # Errors
    /// When it cannot be read or made.
    pub fn local_key(&self) -> Result<Secret> {
        let file = self.path.join(KEY_FILE);
        match std::fs::read_to_string(&file) {
            Ok(text) if text.trim().len() >= 16 => Ok(Secret::new(text.trim())),
            Ok(_) => bail!(
                "{} does not hold a key; remove it and a new one is made",
                file.display()
            ),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => make_key(&file),
            Err(error) => Err(error)
                .with_context(|| format!("cannot read {}; check its permissions", file.display())),
        }
    }
}

/// Written beside and renamed, so that a crash leaves no half of a key.
fn make_key(file: &Path) -> Result<Secret> {
    // Two random UUIDs: 244 bits from the system's generator.
    let key = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
    let draft = file.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut out = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&draft)?;
        writeln!(out, "{key}")?;
        out.sync_all()?;
        std::fs::rename(&draft, file)
    };
    write().with_context(|| format!("cannot write the local key {}", file.display()))?;
    Ok(Secret::new(key))
}

fn unwritable(verb: &str, dir: &Path) -> String {
    format!(
        "data.dir: cannot {verb} {}; choose a folder that this user can write to with --data-dir",
        dir.display()
    )
}

fn holder(lock: &mut File) -> String {
    let mut text = String::new();
    // Only for the message: whoever holds it may be writing it just now.
    let _ = lock.take(16).read_to_string(&mut text);
    match text.trim().parse::<u32>() {
        Ok(pid) => format!(" (process {pid})"),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_folder_has_one_user_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        let first = DataDir::open(&dir).unwrap();
        let text = format!("{:#}", DataDir::open(&dir).err().unwrap());
        assert!(text.contains("in use"), "{text}");
        assert!(text.contains(&std::process::id().to_string()), "{text}");
        drop(first);
        assert!(DataDir::open(&dir).is_ok());
    }

    #[test]
    fn the_local_key_is_random_kept_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::open(folder.path()).unwrap();
        let key = data.local_key().unwrap();
        assert_eq!(key.expose().len(), 64);
        assert_eq!(data.local_key().unwrap().expose(), key.expose());
        let file = std::fs::metadata(folder.path().join(KEY_FILE)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600);
        let other = tempfile::tempdir().unwrap();
        let other = DataDir::open(other.path()).unwrap().local_key().unwrap();
        assert_ne!(other.expose(), key.expose());
    }
}
