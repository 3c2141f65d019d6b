// CoreDNS with the few plugins that a cluster for tests needs.
//
// A module of its own, with the versions that Kubernetes stands on (../go.mod): what both need is compiled once, which is
// most of it. That is why it is not the newest.
package main

import (
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"

	_ "github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
)

func main() {
	coremain.Run()
}
