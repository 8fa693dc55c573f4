//! Tests that run in both deployment modes.

use std::future::Future;

use super::{Deployment, Settings};
use crate::gateway::FakeGateway;

/// One of the two deployment modes. A test takes a mode instead of a [`Deployment`] if it computes
/// the settings of its deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeploymentMode {
    Embedded,
    Distributed,
}

impl DeploymentMode {
    /// Starts a deployment with these settings.
    pub async fn start(self, settings: Settings<'_>) -> Deployment {
        match self {
            Self::Embedded => Deployment::embedded(settings).await,
            Self::Distributed => Deployment::distributed(settings).await,
        }
    }

    /// Starts a deployment that looks up tenants at the fake gateway, and caches found tenants for
    /// only 1 ms.
    pub async fn start_with_gateway(
        self,
        gateway: &FakeGateway,
        extra_settings: Settings<'_>,
    ) -> Deployment {
        let mut settings = vec![
            ("tenant.gateway_url", gateway.url.as_str()),
            ("tenant.cache_ttl", "1ms"),
            ("tenant.breaker_probe_interval", "500ms"),
            ("tenant.gateway_timeout", "2s"),
            ("broker.connect_limit.burst", "100000"),
        ];
        settings.extend(extra_settings);
        self.start(&settings).await
    }
}

/// The argument of a test function of [`each_deployment`](crate::each_deployment): a running
/// [`Deployment`], or only the [`DeploymentMode`].
pub trait TestArgument: Sized {
    /// Creates the argument. `settings` are the settings after `with`.
    fn create(mode: DeploymentMode, settings: Settings<'_>) -> impl Future<Output = Self>;
}

impl TestArgument for Deployment {
    async fn create(mode: DeploymentMode, settings: Settings<'_>) -> Self {
        mode.start(settings).await
    }
}

impl TestArgument for DeploymentMode {
    async fn create(mode: DeploymentMode, settings: Settings<'_>) -> Self {
        assert!(
            settings.is_empty(),
            "a test that takes a mode sets the settings itself"
        );
        mode
    }
}

/// Creates the argument of a test function, and calls the function.
pub async fn run_test<Argument: TestArgument>(
    test: impl AsyncFnOnce(Argument),
    mode: DeploymentMode,
    settings: Settings<'_>,
) {
    test(Argument::create(mode, settings).await).await;
}

/// Creates two tests from each test function: `embedded::<name>` and `distributed::<name>`. A test
/// function takes a [`Deployment`] or a [`DeploymentMode`]. The expression after `with` contains
/// the settings of the deployment.
#[macro_export]
macro_rules! each_deployment {
    ($($test:ident $(with $settings:expr)?),* $(,)?) => {
        mod embedded {
            $($crate::deployment_test!(Embedded $test $($settings)?);)*
        }

        mod distributed {
            $($crate::deployment_test!(Distributed $test $($settings)?);)*
        }
    };
}

/// Creates one test of [`each_deployment`].
#[macro_export]
#[doc(hidden)]
macro_rules! deployment_test {
    ($mode:ident $test:ident $($settings:expr)?) => {
        #[tokio::test]
        async fn $test() {
            #[allow(unused_imports, reason = "the settings may be constants of the module")]
            use super::*;
            let settings: &[$crate::deployment::Settings<'_>] = &[$($settings)?];
            let settings = settings.first().copied().unwrap_or_default();
            let mode = $crate::DeploymentMode::$mode;
            $crate::deployment::run_test(super::$test, mode, settings).await;
        }
    };
}
