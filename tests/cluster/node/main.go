// The components of Kubernetes as one program, for the tests of this repository only.
//
// No package of Debian, PyPI or npm brings an API server, but the Go module k8s.io/kubernetes does. One binary that
// dispatches on its first argument shares all of the code, and is built once where five would be linked five times.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the metrics that the components' own mains register
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var components = map[string]func() *cobra.Command{
	"apiserver":          apiserver.NewAPIServerCommand,
	"controller-manager": manager.NewControllerManagerCommand,
	"scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"proxy":              proxy.NewProxyCommand,
	"kubelet":            func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	if len(os.Args) < 2 || components[os.Args[1]] == nil {
		fmt.Fprintf(os.Stderr, "usage: %s apiserver|controller-manager|scheduler|kubelet|proxy [flags]\n", filepath.Base(os.Args[0]))
		os.Exit(2)
	}
	component := os.Args[1]
	os.Args = append([]string{"kube-" + component}, os.Args[2:]...)
	os.Exit(cli.Run(components[component]()))
}
