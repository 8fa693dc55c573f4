//! The data folder: database file, lock file, and the key of the caller `local`.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use uuid::Uuid;

use crate::config::Secret;

/// Name of the API caller that the key in the data folder belongs to.
pub const LOCAL_CALLER: &str = "local";

const DATABASE_FILE: &str = "cloud-connector.db";
const KEY_FILE: &str = "local.key";
const LOCK_FILE: &str = "lock";
/// A shorter text in the key file is not a key that we wrote.
const MIN_KEY_CHARS: usize = 16;

/// Returns the path of the database file in a data folder.
#[must_use]
pub fn database_path(dir: &Path) -> PathBuf {
    dir.join(DATABASE_FILE)
}

/// A locked data folder. Dropping the value releases the lock.
pub struct DataDir {
    path: PathBuf,
    /// The kernel releases the lock when the process ends, even after a crash.
    _lock: File,
}

impl DataDir {
    /// Creates the folder if it does not exist, and locks it.
    ///
    /// # Errors
    /// When the folder is not writable, or another process holds the lock.
    pub fn open(dir: &Path) -> Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .with_context(|| not_writable("create", dir))?;
        let path = dir
            .canonicalize()
            .with_context(|| not_writable("use", dir))?;
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(path.join(LOCK_FILE))
            .with_context(|| not_writable("write to", dir))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "data.dir: {} is in use by another cloud-connector{}; stop that process, or choose \
                 another folder with --data-dir",
                dir.display(),
                lock_owner(&mut lock)
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| not_writable("lock", dir));
            }
        }
        lock.set_len(0)?;
        writeln!(lock, "{}", std::process::id()).with_context(|| not_writable("write to", dir))?;
        Ok(Self { path, _lock: lock })
    }

    /// The absolute path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the database file.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        database_path(&self.path)
    }

    /// Returns the key of the caller `local`. Creates a random key at the first call.
    ///
    /// # Errors
    /// When the key file cannot be read or written.
    pub fn local_key(&self) -> Result<Secret> {
        let file = self.path.join(KEY_FILE);
        match std::fs::read_to_string(&file) {
            Ok(text) if text.trim().len() >= MIN_KEY_CHARS => Ok(Secret::new(text.trim())),
            Ok(_) => bail!(
                "{} does not contain a key; delete the file and restart, and a new key is created",
                file.display()
            ),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => create_key(&file),
            Err(error) => Err(error)
                .with_context(|| format!("cannot read {}; check its permissions", file.display())),
        }
    }
}

/// Writes a new key to a temporary file and renames it: a crash must not leave a partial key.
fn create_key(file: &Path) -> Result<Secret> {
    // Two random UUIDs have 244 random bits.
    let key = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
    let temporary = file.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut out = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&temporary)?;
        writeln!(out, "{key}")?;
        out.sync_all()?;
        std::fs::rename(&temporary, file)
    };
    write().with_context(|| {
        format!(
            "cannot write the local key {}; check the permissions of the data folder",
            file.display()
        )
    })?;
    Ok(Secret::new(key))
}

fn not_writable(verb: &str, dir: &Path) -> String {
    format!(
        "data.dir: cannot {verb} {}; choose a folder that this user can write to with --data-dir",
        dir.display()
    )
}

fn lock_owner(lock: &mut File) -> String {
    let mut text = String::new();
    // Best effort, for the error text only: the owner may not have written its id yet.
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
    fn a_second_process_cannot_open_a_locked_folder() {
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
    fn the_local_key_is_random_stored_and_readable_only_by_its_owner() {
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
