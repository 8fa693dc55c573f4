//! Readiness: the parts of this process and what each says of itself now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use parking_lot::RwLock;

/// What a part says: well, or what is wrong.
pub type HealthResult = Result<(), String>;

type Note = Arc<dyn Fn() -> String + Send + Sync>;
type Check = Arc<dyn Fn() -> BoxFuture<'static, HealthResult> + Send + Sync>;

/// A part that does not answer within this is not well.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The parts that readiness depends on. A clone is the same health.
#[derive(Clone, Default)]
pub struct Health {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    parts: RwLock<BTreeMap<&'static str, Check>>,
    notes: RwLock<BTreeMap<&'static str, Note>>,
    stopping: AtomicBool,
}

impl Health {
    /// A process without parts: ready.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part that is asked each time somebody wants to know.
    pub fn add<F>(&self, part: &'static str, check: F)
    where
        F: Fn() -> BoxFuture<'static, HealthResult> + Send + Sync + 'static,
    {
        self.inner.parts.write().insert(part, Arc::new(check));
    }

    /// Adds a part that is shown and that readiness does not depend on.
    pub fn add_note(&self, part: &'static str, note: impl Fn() -> String + Send + Sync + 'static) {
        self.inner.notes.write().insert(part, Arc::new(note));
    }

    /// What those parts say now.
    #[must_use]
    pub fn notes(&self) -> BTreeMap<&'static str, String> {
        let notes = self.inner.notes.read();
        notes.iter().map(|(part, note)| (*part, note())).collect()
    }

    /// From now on not ready: the process is about to stop.
    pub fn stopping(&self) {
        self.inner.stopping.store(true, Ordering::Release);
    }

    /// Asks every part at once.
    pub async fn ask(&self) -> BTreeMap<&'static str, HealthResult> {
        let parts: Vec<_> = {
            let parts = self.inner.parts.read();
            parts
                .iter()
                .map(|(name, check)| (*name, check.clone()))
                .collect()
        };
        let asked = parts.into_iter().map(|(name, check)| async move {
            let verdict = tokio::time::timeout(ANSWER_WITHIN, check())
                .await
                .unwrap_or_else(|_| Err(format!("no answer within {ANSWER_WITHIN:?}")));
            (name, verdict)
        });
        let mut verdicts: BTreeMap<_, _> = join_all(asked).await.into_iter().collect();
        if self.inner.stopping.load(Ordering::Acquire) {
            verdicts.insert("process", Err("stopping".to_owned()));
        }
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test(start_paused = true)]
    async fn each_part_speaks_for_itself_and_silence_is_not_well() {
        let health = Health::new();
        health.add("well", || async { Ok(()) }.boxed());
        health.add("ill", || async { Err("it hurts".to_owned()) }.boxed());
        health.add("silent", || std::future::pending().boxed());
        let verdicts = health.ask().await;
        assert_eq!(verdicts["well"], Ok(()));
        assert_eq!(verdicts["ill"], Err("it hurts".to_owned()));
        assert!(verdicts["silent"].is_err());
        assert!(!verdicts.contains_key("process"));
        health.stopping();
        assert!(health.ask().await["process"].is_err());
    }
}
